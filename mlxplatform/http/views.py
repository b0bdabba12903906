"""One way to write an API view: methods by name, refusals and surprises answered in the path's dialect.

``endpoint(GET=list_them, POST=make_one)`` is a Django view. Handlers may be async or plain functions (these run in
a thread); they return a response, or a value that becomes JSON; they raise Refusal. A client that left is logged
as 499 and nothing more is done for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.http.errors import INTERNAL, error_response, json_response, method_refusal
from mlxplatform.inference.contract import Refusal

log = structlog.get_logger(__name__)

BROKER_DOWN = Refusal(503, "broker_unavailable", "The message broker is not reachable. Try again shortly.", retry_after=2)
#: Locked for longer than a writer waits, or its connection is gone.
DATABASE_BUSY = Refusal(503, "database_busy", "The database is busy or not reachable. Try again shortly.", retry_after=2)


DATABASE_ERRORS = (OperationalError, InterfaceError)


def unavailable(request: HttpRequest, error: Exception) -> HttpResponse:
    """The answer while the broker or the database cannot be asked."""
    if isinstance(error, DATABASE_ERRORS):
        log.warning("database unavailable", path=request.path, error=type(error).__name__)
        return error_response(request, DATABASE_BUSY)
    log.warning("broker unreachable", path=request.path, error=str(error))
    return error_response(request, BROKER_DOWN)


def endpoint(**handlers: Callable[..., Any]) -> Callable[..., Any]:
    """A view from handlers by method. HEAD follows GET. Exempt from CSRF tokens: the guard checks Origin instead."""
    allowed = sorted({*handlers, *({"HEAD"} if "GET" in handlers else ())})
    runs = {method: handler if iscoroutinefunction(handler) else sync_to_async(handler) for method, handler in handlers.items()}

    @csrf_exempt
    async def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        run = runs.get("GET" if request.method == "HEAD" else request.method or "")
        if run is None:
            response = error_response(request, method_refusal(request.method or ""))
            response["Allow"] = ", ".join(allowed)
            return response
        try:
            answer = await run(request, *args, **kwargs)
        except Refusal as refusal:
            return error_response(request, refusal)
        except Http404 as missing:
            return error_response(request, Refusal(404, "not_found", str(missing) or "There is no such thing."))
        except (*BROKER_ERRORS, *DATABASE_ERRORS) as error:
            return unavailable(request, error)
        except asyncio.CancelledError:
            log.info("request cancelled by client", path=request.path, status=499)
            raise
        except Exception:
            log.exception("request failed", path=request.path)
            return error_response(request, INTERNAL)
        return answer if isinstance(answer, HttpResponseBase) else json_response(answer)

    view.methods = tuple(sorted(handlers))  # type: ignore[attr-defined]
    return view
