"""The library over HTTP: what is here, what would fit, what is coming, what could go.

Models belong to the machine, not to a project: the door asks for the scope 'operate' before anything here changes one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import live_hosts, model_not_found
from mlxplatform.jobs.models import Job, JobEvent
from mlxplatform.jobs.states import DONE, TERMINAL
from mlxplatform.library import choices, downloads, fit, hub, local_models, reclaim, removal
from mlxplatform.library.local_models import LocalModel
from mlxplatform.library.machine import Machine, this_machine
from mlxplatform.library.presets import Choices

#: Transfers shown.
_SHOWN = 5


def actor_of(request: HttpRequest) -> str:
    identity = getattr(request, "identity", None)
    return identity.actor if identity is not None else "local"


def project_of(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


def _machine() -> Machine:
    return this_machine(settings.ENV.memory_budget_mb << 20)


def model_json(model: LocalModel, machine: Machine, serving: set[str], chosen: Choices) -> dict[str, Any]:
    quantization = model.quantization or {}
    report = fit.assess(model, machine)
    return {
        "id": model.id,
        "repo_id": model.id,
        "kind": model.kind,
        "model_type": model.architecture,
        "size_bytes": model.bytes,
        "parameters": model.parameters,
        "quant_bits": quantization.get("bits"),
        "quantization": {name: quantization[name] for name in ("bits", "group_size", "mode") if name in quantization} or None,
        "dtype": model.dtype,
        "context": model.context,
        "vision": model.vision,
        "supported": not model.obstacle,
        "reason": model.obstacle or None,
        "serving": model.id in serving,
        "pinned": model.id in chosen.pinned,
        "default": chosen.defaults.get(model.kind) == model.id,
        "preset": chosen.presets.get(model.id) or None,
        "source": model.source,
        "revision": model.revision,
        "provenance": model.provenance or None,
        "assessment": {
            "fits": report.fits,
            "max_safe_context": report.max_safe_context,
            "predicted_decode_tps": report.predicted_decode_tps,
        },
    }


async def library(request: HttpRequest) -> dict[str, Any]:
    serving = await removal.serving()
    models = await sync_to_async(local_models.scan)(settings.HOME)
    machine, chosen = _machine(), await sync_to_async(choices.everything)()
    return {"ok": True, "models": [model_json(model, machine, serving, chosen) for model in models]}


async def fitting(request: HttpRequest) -> dict[str, Any]:
    """One model on this machine: ``?model=&context=``; without a model, the one that answers now."""
    name = request.GET.get("model")
    model = await sync_to_async(local_models.find if name else _current)(name, settings.HOME)
    if model is None:
        raise model_not_found(name)
    context = _context(request)
    machine = _machine()
    report = fit.assess(model, machine, context)
    states = [host for host in await live_hosts() if any(m.id == model.id and m.resident for m in host.models)]
    fastest = max((host.raw for host in states), key=lambda raw: float(raw.get("tokens_per_s") or 0), default={})
    measured = float(fastest.get("tokens_per_s") or 0)
    return {
        "ok": True,
        "model": model.id,
        "machine": machine.describe(),
        "context_tokens": context or model.context,
        "typical_context_tokens": fit.TYPICAL_CONTEXT,
        "typical_decode_tps": report.predicted_decode_tps,
        "measured_decode_tps": measured or None,
        "measured_at": fastest.get("at") if measured else None,
        "report": report.describe(),
        "sku_matrix_ctx": fit.MATRIX_CONTEXT,
        "sku_matrix": fit.matrix(model),
    }


def _current(_: str | None, home: Path) -> LocalModel | None:
    """The model that answers when none is named."""
    chosen = choices.everything().defaults.get("chat")
    return local_models.find(chosen, home) or local_models.default_chat(home)


def _context(request: HttpRequest) -> int:
    raw = request.GET.get("context", "")
    if not raw:
        return 0
    if not raw.isdecimal() or len(raw) > 9 or int(raw) < 1:
        raise Refusal(400, "invalid_value", "context must be a whole number above 0.", param="context")
    return int(raw)


def transfers(request: HttpRequest) -> dict[str, Any]:
    """The newest downloads with their latest figures."""
    return {"ok": True, "downloads": recent_transfers()}


def recent_transfers() -> list[dict[str, Any]]:
    jobs = Job.objects.filter(kind=downloads.KIND).order_by("-created_at", "-id")[:_SHOWN]
    return [_transfer(job) for job in jobs]


def _transfer(job: Job) -> dict[str, Any]:
    last = JobEvent.objects.filter(job=job, type="stage", payload__stage="downloading").order_by("-seq").first()
    figures = last.payload if last else {}
    names = ("current_file", "received_bytes", "total_bytes", "files_done", "files_total", "bytes_per_sec")
    state = "done" if job.state == DONE else "error" if job.state in TERMINAL else "active"
    return {
        "job_id": job.id,
        "repo_id": job.config["repo_id"],
        "state": state,
        **{name: figures.get(name) for name in names},
        "started_at": job.started_at.isoformat() if job.started_at else None,
        "finished_at": job.ended_at.isoformat() if job.ended_at else None,
        "error": job.error or None,
    }


async def download(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)

    def make() -> Job:
        repo = body.get("repo_id", body.get("model"))
        job = downloads.submit(repo, revision=body.get("revision"), project=project_of(request), created_by=actor_of(request))
        audit.record(actor_of(request), "model.download", job.id, project=project_of(request), after={"repo_id": repo})
        return job

    job = await sync_to_async(make)()
    return {"ok": True, "job_id": job.id, "url": f"/api/jobs/{job.id}", "stream": f"/api/jobs/{job.id}/stream"}


async def search(request: HttpRequest) -> dict[str, Any]:
    """Models on the hub; an unreachable hub is an answer too, since a local server is often offline."""
    query = request.GET.get("q", "").strip()
    if not query or len(query) > 200:
        raise Refusal(400, "missing_required_parameter", "q must be 1 to 200 characters to search for.", param="q")
    try:
        results = await sync_to_async(hub.search)(query)
    except hub.HubError as error:
        return {"ok": True, "offline": error.code == "offline", "error": str(error), "results": []}
    here = {model.id for model in await sync_to_async(local_models.scan)(settings.HOME)}
    return {"ok": True, "offline": False, "results": [{**found, "local": found["id"] in here} for found in results]}


async def delete(request: HttpRequest, model_id: str) -> dict[str, Any]:
    """Delete a model of the data directory. A model in memory is not deleted under its readers."""
    in_memory = await removal.serving()

    def remove() -> LocalModel:
        return removal.remove(model_id, actor_of(request), project=project_of(request), in_memory=in_memory)

    gone = await sync_to_async(remove)()
    return {"ok": True, "deleted": gone.id}


async def gc_plan(request: HttpRequest) -> dict[str, Any]:
    items = await sync_to_async(reclaim.plan)(await removal.serving())
    return {"ok": True, "items": [item.describe() for item in items], "bytes": sum(item.bytes for item in items)}


async def gc_execute(request: HttpRequest) -> dict[str, Any]:
    """Delete what the plan lists: ``{yes: true, items?}``, with ``items`` the ids that were shown."""
    shown = reclaim.asked_for(await read_json(request))
    resident = await removal.serving()

    def carry_out() -> reclaim.Outcome:
        outcome = reclaim.execute(resident, shown)
        audit.record(actor_of(request), "library.reclaim", "disk", after=outcome.describe())
        return outcome

    return {"ok": True, **(await sync_to_async(carry_out)()).describe()}
