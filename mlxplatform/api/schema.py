"""The OpenAPI document of the whole surface, and a page to read it on.

drf-spectacular describes the REST views; the wire protocols are added from their field tables. The page is plain
HTML made on the server: it works offline and loads nothing from elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator

from mlxplatform.api.fields import Table, schema_of
from mlxplatform.api.surface import OPERATIONS, Operation
from mlxplatform.http.views import endpoint

_ERROR = {"description": "Refused; the body says why", "content": {"application/json": {"schema": {"type": "object"}}}}


def body_schema(fields: Table) -> dict[str, Any]:
    properties = {}
    for name, field in fields.items():
        note = f"{field.effect}. {field.note}".strip()
        properties[name] = {**schema_of(field.check), "description": note}
    required = [name for name, field in fields.items() if field.required]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def operation_object(operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if operation.streams:
        answer["text/event-stream"] = {"schema": {"type": "string"}}
    names = re.findall(r"{(\w+)}", operation.path)
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{operation.method}{operation.path}").strip("_"),
        "summary": operation.title,
        "tags": [operation.tag],
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        "responses": {"200": {"description": "The answer", "content": answer}, "4XX": _ERROR, "5XX": _ERROR},
    }
    if operation.fields is not None:
        kind = "multipart/form-data" if operation.form else "application/json"
        content = {kind: {"schema": body_schema(operation.fields)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def document(request: HttpRequest) -> dict[str, Any]:
    with GENERATOR_STATS.silence():
        generated: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    paths = generated.setdefault("paths", {})
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation_object(operation)
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
