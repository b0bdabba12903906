"""Traces for whoever runs an OpenTelemetry collector: from the HTTP request over the broker to the engine's phases.

Off unless MLXPLATFORM_TRACES names a collector; then nothing of OpenTelemetry is even imported. A trace holds names,
times and counts, never a prompt or an answer. The parent travels as a W3C ``traceparent`` text: in the request's header,
in the :class:`~mlxplatform.inference.contract.InferenceRequest` through the broker.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from mlxplatform import __version__
from mlxplatform.environment import BadSetting

Nanoseconds = int
#: Header and field by which a parent is named.
PARENT = "traceparent"

_tracer: Any = None


def is_on() -> bool:
    return _tracer is not None


def start(service: str) -> None:
    """Begin to export, when a collector is configured.

    Raises:
        BadSetting: the packages are not installed.
    """
    global _tracer
    if not settings.ENV.traces or _tracer is not None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise BadSetting("MLXPLATFORM_TRACES needs the packages of requirements/tracing.in") from None
    names = {"service.name": f"mlx-platform-{service}", "service.version": __version__, "host.name": settings.ENV.host_id}
    provider = TracerProvider(resource=Resource.create(names))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.ENV.traces)))
    _tracer = provider.get_tracer("mlxplatform")


def record(name: str, parent: str, began: Nanoseconds, ended: Nanoseconds, failed: str = "", **facts: Any) -> str:
    """Note something that has happened; answers its own ``traceparent`` for children ("" when traces are off)."""
    if _tracer is None:
        return ""
    span = _tracer.start_span(name, context=_context(parent), start_time=began, attributes=_plain(facts))
    if failed:
        _fail(span, failed)
    span.end(end_time=ended)
    return _parent_of(span)


class TraceMiddleware:
    """A span around every API request, ended with the last byte of its answer. ``request.trace`` names it for others."""

    async_capable = True
    sync_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        self.get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if _tracer is None:
            return await self.get_response(request)
        span = _tracer.start_span(
            f"{request.method} {_route(request.path)}",
            context=_context(request.headers.get(PARENT, "")),
            attributes={"http.request.method": request.method or "", "url.path": request.path[:200]},
        )
        request.trace = _parent_of(span)  # type: ignore[attr-defined]
        try:
            response = await self.get_response(request)
        except BaseException:
            span.end()
            raise
        span.set_attribute("http.response.status_code", response.status_code)
        span.set_attribute("request.id", getattr(request, "request_id", ""))
        if response.status_code >= 500:
            _fail(span, str(response.status_code))
        if response.streaming:
            response.streaming_content = _until_end(response.streaming_content, span)  # type: ignore[attr-defined]
        else:
            span.end()
        return response


async def _until_end(content: Any, span: Any) -> Any:
    try:
        async for part in content:
            yield part
    finally:
        span.end()
        if close := getattr(content, "aclose", None):
            await close()


def now() -> Nanoseconds:
    return time.time_ns()


def _route(path: str) -> str:
    """The path without what differs from request to request, so that traces group."""
    parts = path.split("/")
    return "/".join("{id}" if any(c.isdigit() for c in part[2:]) else part for part in parts)[:120]


def _context(parent: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({PARENT: parent}) if parent else None


def _parent_of(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _fail(span: Any, why: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why))


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in facts.items() if value is not None}
