"""Refusals as HTTP answers, in the dialect of the path that was called.

Three dialects: OpenAI's for ``/v1/*``, Anthropic's for ``/v1/messages*``, the platform's for ``/api/*``. One table
gives the OpenAI ``type`` of a code, one the Anthropic ``type`` of a status; a protocol may render its own body from
the same :class:`Refusal`. Nothing here knows what was asked or why it was refused, and nothing of an exception but
a Refusal's own words ever reaches a client.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import structlog
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string

from mlxplatform.inference.contract import Refusal

log = structlog.get_logger(__name__)

Dialect = Literal["openai", "anthropic", "platform", "page"]

#: OpenAI ``type`` by our code, where the status alone does not say it.
OPENAI_TYPES = {
    "queue_full": "resource_admission",
    "memory_admission": "memory_admission",
    "context_over_budget": "memory_admission",
    "unsupported_execution": "not_implemented",
    "model_load_failed": "model_load_failed",
    "model_unavailable": "model_unavailable",
    "server_closing": "server_closing",
    "request_cancelled": "request_cancelled",
    "insufficient_quota": "insufficient_quota",
}
#: OpenAI ``type`` by status; other 4xx are invalid_request_error, 5xx server_error.
OPENAI_STATUS_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
#: Anthropic ``type`` by status; other 4xx are invalid_request_error, 5xx api_error.
ANTHROPIC_STATUS_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}

INTERNAL = Refusal(500, "internal_error", "The server failed to handle this request. The failure was logged.")

JSON_TYPE = "application/json"
_encoder = msgspec.json.Encoder()


def to_json(value: Any) -> bytes:
    """Compact UTF-8 JSON; values are finite and well-formed by construction of whoever made them."""
    return _encoder.encode(value)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(to_json(value), status=status, content_type=JSON_TYPE, headers=headers)


def dialect_of(path: str) -> Dialect:
    """The error dialect of a path; "page" for anything that is no API."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "anthropic"
    if path == "/v1" or path.startswith("/v1/"):
        return "openai"
    if path == "/api" or path.startswith("/api/"):
        return "platform"
    return "page"


def openai_type(refusal: Refusal) -> str:
    by_status = OPENAI_STATUS_TYPES.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    return OPENAI_TYPES.get(refusal.code, by_status)


def anthropic_type(refusal: Refusal) -> str:
    return ANTHROPIC_STATUS_TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """The value of the ``error`` key, also used inside streams and batch lines."""
    return {"message": refusal.message, "type": openai_type(refusal), "param": refusal.param, "code": refusal.code}


def error_body(dialect: Dialect, refusal: Refusal, request_id: str | None = None) -> dict[str, Any]:
    if dialect == "anthropic":
        body: dict[str, Any] = {"type": "error", "error": {"type": anthropic_type(refusal), "message": refusal.message}}
        if request_id:
            body["request_id"] = request_id
        return body
    if dialect == "platform":
        return {"ok": False, "error": refusal.message, "code": refusal.code, "field": refusal.param}
    return {"error": openai_error(refusal)}


def error_headers(refusal: Refusal) -> dict[str, str]:
    return {"Retry-After": str(refusal.retry_after)} if refusal.retry_after is not None else {}


def error_response(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """The answer to a refused request, in the dialect of its path. People's pages get a sentence."""
    dialect = dialect_of(request.path)
    if dialect == "page" and "text/html" in request.headers.get("Accept", ""):
        return _page(refusal)
    body = error_body(dialect, refusal, getattr(request, "request_id", None))
    return json_response(body, refusal.status, error_headers(refusal))


def _page(refusal: Refusal) -> HttpResponse:
    """A page that says it and leads on. It asks nothing of the database or the session: either may be what is wrong."""
    response = HttpResponse(render_to_string("console/refused.html", {"refusal": refusal}), status=refusal.status)
    response["Content-Security-Policy"] = (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    response["Cache-Control"] = "no-store"
    for name, value in error_headers(refusal).items():
        response[name] = value
    return response


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's word for a form of another site, and for one that was open while somebody signed in again."""
    message = (
        "This form was opened before you last signed in, or by another site. Nothing was changed. "
        "Go back, reload the page and send it again."
    )
    return error_response(request, Refusal(403, "csrf_failed", message))


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return error_response(request, Refusal(400, "bad_request", "The request could not be understood."))


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return error_response(request, Refusal(403, "forbidden", "You may not do this."))


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return error_response(request, unknown_path(request))


def server_error(request: HttpRequest) -> HttpResponse:
    return error_response(request, INTERNAL)


def unknown_path(request: HttpRequest) -> Refusal:
    return Refusal(404, "unknown_url", f"There is no {request.method} {request.path[:200]} here.")


def drf_exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """DRF's ``EXCEPTION_HANDLER``: the same refusals, never its ``{"detail": ...}``."""
    from rest_framework.exceptions import APIException, MethodNotAllowed, ParseError, UnsupportedMediaType, ValidationError

    request = context["request"]._request
    if isinstance(exc, Refusal):
        return error_response(request, exc)
    if isinstance(exc, Http404):
        return error_response(request, Refusal(404, "not_found", str(exc) or "There is no such thing."))
    if isinstance(exc, PermissionDenied):
        return forbidden(request)
    if isinstance(exc, ValidationError):
        field, message = _first_problem(exc.detail)
        return error_response(request, Refusal(400, "invalid_value", message, param=field or None))
    if isinstance(exc, ParseError):
        return error_response(request, Refusal(400, "invalid_json", "The body is not valid JSON."))
    if isinstance(exc, UnsupportedMediaType):
        return error_response(request, Refusal(415, "unsupported_media_type", "Send JSON with Content-Type: application/json."))
    if isinstance(exc, MethodNotAllowed):
        response = error_response(request, method_refusal(request.method or ""))
        response["Allow"] = ", ".join(context["view"].allowed_methods)
        return response
    if isinstance(exc, APIException):
        return error_response(request, Refusal(exc.status_code, str(exc.default_code), str(exc.detail)))
    return None


def method_refusal(method: str) -> Refusal:
    return Refusal(405, "method_not_allowed", f"{method} is not allowed here.")


def _first_problem(detail: Any, path: str = "") -> tuple[str, str]:
    """Field path and text of the first message in DRF's nested validation detail."""
    if isinstance(detail, dict):
        for key, value in detail.items():
            if value:
                here = path if key == "non_field_errors" else f"{path}.{key}" if path else str(key)
                return _first_problem(value, here)
    if isinstance(detail, (list, tuple)):
        for index, value in enumerate(detail):
            if value:
                return _first_problem(value, f"{path}[{index}]" if isinstance(value, (dict, list)) else path)
    return path, str(detail)
