"""``GET /v1/models`` and ``/v1/models/{id}``: what the live hosts can serve. ``DELETE`` is for what was fine-tuned here.

One object serves three kinds of client: OpenAI's (``object``, ``owned_by``), Anthropic's (``type``, ``display_name``,
``created_at``, paging fields) and decision clients (the ``models`` key).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import ServedModel, live_hosts, model_not_found
from mlxplatform.library import local_adapters
from mlxplatform.training import registry

OWNER = "mlx-platform"


def model_object(model: ServedModel) -> dict[str, Any]:
    entry = model.entry
    created = int(entry.get("created") or 0)
    return {
        "id": model.id,
        "object": "model",
        "type": "model",
        "display_name": model.id,
        "created": created,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": model.context,
        "owned_by": str(entry.get("owned_by") or OWNER),
        "kind": model.kind,
        "context_window": model.context,
        "capabilities": dict.fromkeys(sorted(model.capabilities), True),
        "resident": model.resident,
        "current": model.current,
    }


def _project(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


async def served(request: HttpRequest) -> dict[str, ServedModel]:
    """Every model that the asking project may use, once. Current models first.

    The resident copy speaks for a model that several hosts have. Checkpoints of a fine-tune are asked for by name and
    found here, but :func:`list_models` leaves them out: each run has several.
    """
    project = _project(request)
    found: dict[str, ServedModel] = {}
    for host in await live_hosts():
        for model in host.models:
            if not model.visible_to(project):
                continue
            if model.id not in found or (model.resident and not found[model.id].resident):
                found[model.id] = model
    return dict(sorted(found.items(), key=lambda item: (item[1].kind != "chat", not item[1].current, item[0])))


def offered(models: dict[str, ServedModel]) -> dict[str, ServedModel]:
    """What lists show: no checkpoints, and nothing that is known not to load."""
    return {name: model for name, model in models.items() if model.usable and not model.entry.get("checkpoint")}


async def list_models(request: HttpRequest) -> dict[str, Any]:
    models = offered(await served(request))
    return {
        "object": "list",
        "data": [model_object(model) for model in models.values()],
        "has_more": False,
        "first_id": next(iter(models), None),
        "last_id": next(reversed(models), None),
        "models": [
            {"name": model.id, "description": f"Local {model.kind} model", "release_date": ""}
            for model in models.values()
            if model.kind == "chat"
        ],
    }


async def retrieve_model(request: HttpRequest, model_id: str) -> dict[str, Any]:
    """Any id, with slashes as they are or as %2F: the server decodes paths before routing."""
    model = (await served(request)).get(model_id)
    if model is None:
        raise model_not_found(model_id)
    return model_object(model)


async def delete_model(request: HttpRequest, model_id: str) -> dict[str, Any]:
    """Delete a fine-tuned model, or one of its checkpoints, by the name requests use."""
    if not model_id.startswith(local_adapters.NAME_PREFIX):
        if model_id not in await served(request):
            raise model_not_found(model_id)
        message = "Only fine-tuned models (ft:…) can be deleted here; the library's are deleted by whoever operates the machine."
        raise Refusal(403, "model_not_deletable", message, param="model")
    try:
        await sync_to_async(registry.delete)(model_id, _project(request), request.identity.actor)  # type: ignore[attr-defined]
    except Refusal as refusal:
        raise model_not_found(model_id) if refusal.status == 404 else refusal from None
    return {"id": model_id, "object": "model", "deleted": True}


models_list = endpoint(GET=list_models)
models_detail = endpoint(GET=retrieve_model, DELETE=delete_model)
