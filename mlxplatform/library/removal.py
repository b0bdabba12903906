"""Deleting a model of the data directory; one that is in memory, or that a job works on, is not deleted under its readers."""

from __future__ import annotations

from asgiref.sync import async_to_sync
from django.conf import settings

from mlxplatform import paths
from mlxplatform.accounts import audit
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import live_hosts, model_not_found
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.library import local_models, publication
from mlxplatform.library.local_models import LocalModel

#: Where other models lie, and who removes them there.
_ELSEWHERE = {"hub": "the Hugging Face cache; `hf cache rm` removes it there", "lmstudio": "LM Studio's folder; remove it there"}


async def serving() -> set[str]:
    """Ids of the models in some host's memory."""
    return {model.id for host in await live_hosts() for model in host.models if model.resident}


def remove(model_id: str, actor: str, *, project: str = "default", in_memory: set[str] | None = None) -> LocalModel:
    """Delete it and say so in the audit log.

    Raises:
        Refusal: 404 it is not here, 409 it is in memory or a job needs it, 400 it lies in a folder that is not ours.
    """
    if model_id in (async_to_sync(serving)() if in_memory is None else in_memory):
        raise Refusal(409, "model_in_use", "The model is in memory; unload it first.", param="model")
    model = local_models.find(model_id, settings.HOME)
    if model is None:
        raise model_not_found(model_id)
    if model.source != "home":
        raise Refusal(400, "not_ours", f"The model lies in {_ELSEWHERE[model.source]}.", param="model")
    needing = Job.objects.exclude(state__in=TERMINAL).filter(config__model=model.id).order_by("created_at").first()
    if needing is not None:
        message = f"The job {needing.id} ({needing.kind}, {needing.state}) needs the model; wait for its end or cancel it first."
        raise Refusal(409, "model_in_use", message, param="model")
    publication.remove(paths.models_dir(settings.HOME), model.id)
    audit.record(actor, "model.delete", model.id, project=project, before={"bytes": model.bytes})
    return model
