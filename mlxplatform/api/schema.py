"""The OpenAPI document of the whole surface, and a page to read it on.

drf-spectacular describes the REST views; the wire protocols are added from their field tables, the rest from the list in
:mod:`mlxplatform.api.platform_surface`. The page is plain HTML made on the server: it works offline and loads nothing
from elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator

from mlxplatform.api import platform_surface
from mlxplatform.api.fields import Table, schema_of
from mlxplatform.api.surface import OPERATIONS, Operation
from mlxplatform.http.views import endpoint

#: Path parameters that are numbers.
NUMBERED = {"ordinal", "question_id"}
_ERROR = {"description": "Refused; the body says why", "content": {"application/json": {"schema": {"type": "object"}}}}


def body_schema(fields: Table) -> dict[str, Any]:
    properties = {}
    for name, field in fields.items():
        note = f"{field.effect}. {field.note}".strip()
        properties[name] = {**schema_of(field.check), "description": note}
    required = [name for name, field in fields.items() if field.required]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def operation_object(operation: Operation) -> dict[str, Any]:
    answer = {kind: {"schema": {"type": "object" if kind == "application/json" else "string"}} for kind in operation.media}
    described: dict[str, Any] = {
        "operationId": operation_id(operation.method, operation.path),
        "summary": operation.title,
        "tags": [operation.tag],
        "parameters": path_parameters(operation.path),
        "responses": {"200": {"description": "The answer", "content": answer}, "4XX": _ERROR, "5XX": _ERROR},
    }
    if operation.fields is not None:
        kind = "multipart/form-data" if operation.form else "application/json"
        content = {kind: {"schema": body_schema(operation.fields)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def operation_id(method: str, path: str) -> str:
    return re.sub(r"\W+", "_", f"{method}{path}").strip("_")


def path_parameters(path: str) -> list[dict[str, Any]]:
    """Names of things are text; the places of rows and the questions' numbers are numbers."""
    found = []
    for name in re.findall(r"{(\w+)}", path):
        kind = {"type": "integer", "minimum": 0} if name in NUMBERED else {"type": "string"}
        found.append({"name": name, "in": "path", "required": True, "schema": kind})
    return found


def platform_object(described: platform_surface.Described) -> dict[str, Any]:
    """Answers may be JSON, a file or a stream; what is refused is JSON always."""
    return {
        "operationId": operation_id(described.method, described.path),
        **platform_surface.operation(described, path_parameters(described.path)),
        "responses": {"2XX": {"description": "The answer"}, "4XX": _ERROR, "5XX": _ERROR},
    }


def document(request: HttpRequest) -> dict[str, Any]:
    with GENERATOR_STATS.silence():
        generated: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    paths = generated.setdefault("paths", {})
    for methods in paths.values():
        for described in methods.values():
            described["responses"] |= {"4XX": _ERROR, "5XX": _ERROR}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation_object(operation)
    for described in platform_surface.PLATFORM:
        paths.setdefault(described.path, {})[described.method] = platform_object(described)
    generated["paths"] = dict(sorted(paths.items()))
    return generated


def page(request: HttpRequest) -> HttpResponse:
    """Every operation with its fields, readable without any script."""
    sections = []
    for path, methods in document(request)["paths"].items():
        for method, operation in methods.items():
            if isinstance(operation, dict) and "responses" in operation:
                sections.append((method.upper(), path, _title(operation), _fields(operation)))
    body = format_html_join("\n", "<details><summary><b>{}</b> <code>{}</code> {}</summary><table>{}</table></details>", sections)
    style = "body{font:15px system-ui;margin:2rem auto;max-width:60rem;padding:0 1rem}td{padding:.1rem .8rem;vertical-align:top}"
    html = format_html(
        "<!doctype html><html lang=en><meta charset=utf-8><title>API</title><style>{}</style><h1>API</h1>"
        "<p>The same as <a href=/api/schema>an OpenAPI document</a>.</p>{}</html>",
        style,
        body,
    )
    return HttpResponse(html)


def _title(operation: dict[str, Any]) -> str:
    text: str = operation.get("summary") or operation.get("description") or ""
    return text.split("\n", 1)[0]


def _fields(operation: dict[str, Any]) -> Any:
    kinds = operation.get("requestBody", {}).get("content", {})
    content: dict[str, Any] = next(iter(kinds.values()), {})
    properties = content.get("schema", {}).get("properties", {})
    rows = [(name, schema.get("type", ""), schema.get("description", "")) for name, schema in properties.items()]
    return format_html_join("", "<tr><td><code>{}</code><td>{}<td>{}</tr>", rows)


schema_view = endpoint(GET=document)
docs_view = endpoint(GET=page)
