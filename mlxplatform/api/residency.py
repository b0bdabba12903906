"""``/api/models/{id}/…``: what is in memory, and a person's wishes about it.

Reading never loads a model. ``plan`` answers from what the hosts published; the others put one order on the
control list of each host that has the model, which acts within a step. A pin is kept, and holds after a restart.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.broker import queues
from mlxplatform.broker.connections import async_client
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.hub import control
from mlxplatform.inference.placement import HostState, ServedModel, live_hosts
from mlxplatform.library import choices


async def _holders(model_id: str) -> list[tuple[HostState, ServedModel]]:
    """Every live host that has the model.

    Raises:
        Refusal: 404 no host has it, 503 no host lives.
    """
    hosts = await live_hosts()
    if not hosts:
        raise Refusal(503, "engine_unavailable", "No engine is running now. Try again shortly.", retry_after=5)
    found = [(host, model) for host in hosts for model in host.models if model.id == model_id]
    if not found:
        raise Refusal(404, "model_not_found", "There is no model of this name here.", param="model")
    return found


async def _order(model_id: str, op: str, **fields: Any) -> list[tuple[HostState, ServedModel]]:
    holders = await _holders(model_id)
    for host, _ in holders:
        await async_client().rpush(queues.control_key(host.name), control(op, model=model_id, **fields))
    return holders


def _engine(host: HostState, model_id: str) -> dict[str, Any]:
    return next((engine for engine in host.raw.get("engines", ()) if engine.get("model") == model_id), {})


async def plan(request: HttpRequest, model_id: str) -> dict[str, Any]:
    """What loading the model would take on each host, and which models would make room for it."""
    hosts = []
    for host, model in await _holders(model_id):
        hosts.append(
            {
                "host": host.name,
                "resident": model.resident,
                "pinned": bool(model.entry.get("pinned")),
                "needed_bytes": model.entry.get("needed_bytes"),
                "budget_bytes": (host.raw.get("memory") or {}).get("budget_bytes"),
                **(model.entry.get("plan") or {}),
            }
        )
    return {"ok": True, "model": model_id, "hosts": hosts}


def _noted(request: HttpRequest, what: str, model_id: str) -> None:
    audit.record(request.identity.actor, f"model.{what}", model_id)  # type: ignore[attr-defined]


def _pinned(request: HttpRequest, model_id: str, pinned: bool) -> None:
    choices.set_pinned(model_id, pinned)
    _noted(request, "pin" if pinned else "unpin", model_id)


async def pin(request: HttpRequest, model_id: str) -> dict[str, Any]:
    await _holders(model_id)
    await sync_to_async(_pinned)(request, model_id, True)
    return {"ok": True, "model": model_id, "pinned": True}


async def unpin(request: HttpRequest, model_id: str) -> dict[str, Any]:
    await _holders(model_id)
    await sync_to_async(_pinned)(request, model_id, False)
    return {"ok": True, "model": model_id, "pinned": False}


async def load(request: HttpRequest, model_id: str) -> dict[str, Any]:
    """Begin to load; ``/stats`` tells when it is there."""
    for _, model in await _holders(model_id):
        if not model.resident and (model.entry.get("plan") or {}).get("fits") is False:
            raise Refusal(409, "memory_admission", "The model does not fit beside what is in use or pinned.", param="model")
    await _order(model_id, "load")
    await sync_to_async(_noted)(request, "load", model_id)
    return {"ok": True, "model": model_id}


async def unload(request: HttpRequest, model_id: str) -> dict[str, Any]:
    """Take it out of memory; refused while it answers."""
    for host, _ in await _holders(model_id):
        if _engine(host, model_id).get("requests"):
            raise Refusal(409, "model_in_use", "The model is answering requests; cancel them or wait.", param="model")
    await _order(model_id, "unload")
    await sync_to_async(_noted)(request, "unload", model_id)
    return {"ok": True, "model": model_id}


plan_view = endpoint(GET=plan)
pin_view = endpoint(POST=pin)
unpin_view = endpoint(POST=unpin)
load_view = endpoint(POST=load)
unload_view = endpoint(POST=unload)
