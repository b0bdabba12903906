"""``/api/quantize/*``: what can be done to a model, ordering it, and the reports."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.http.fields import invalid
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.library import local_models
from mlxplatform.training import quantization, reports
from mlxplatform.training.models import QualityReport


def project_of(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


def actor_of(request: HttpRequest) -> str:
    """Who asks, as the audit log names them."""
    identity = getattr(request, "identity", None)
    return identity.actor if identity is not None else "local"


def idempotency_key(request: HttpRequest, body: dict[str, Any]) -> str | None:
    raw = request.headers.get("Idempotency-Key") or body.get("idempotency_key")
    if raw is None:
        return None
    if not isinstance(raw, str) or not 1 <= len(raw) <= 255:
        raise invalid("idempotency_key", "idempotency_key must be text of 1 to 255 characters.")
    return raw


def earlier_job(request: HttpRequest, kind: str, key: str | None) -> Job | None:
    """The job an idempotency key already made; its order need not be possible a second time."""
    if key is None:
        return None
    return Job.objects.filter(kind=kind, project=project_of(request), idempotency_key=key).first()


async def quantize_inspect(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    name = body.get("model", body.get("model_id"))
    model = await sync_to_async(local_models.find)(name, settings.HOME)
    if model is None or model.kind != "chat":
        shown = name if isinstance(name, str) else None
        return {"ok": False, "model_id": shown, "support": False, "error": "There is no such chat model here."}
    modes = {
        name: {"bits": sorted(mode.bits), "group_sizes": sorted(mode.group_sizes)} for name, mode in quantization.MODES.items()
    }
    return {
        "ok": True,
        "model_id": model.id,
        "arch": model.architecture,
        "support": not model.obstacle,
        "reason": model.obstacle or None,
        "size_gb": round(model.bytes / 1e9, 3),
        "parameters": model.parameters,
        "quantization": model.quantization,
        "modes": modes,
        "recipes": list(quantization.RECIPES),
    }


async def quantize_submit(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    return await sync_to_async(_submit_quantize)(request, body)


def _submit_quantize(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    key = idempotency_key(request, body)
    job = earlier_job(request, quantization.KIND, key)
    if job is None:
        order = quantization.check(body)
        job = quantization.submit(order, project=project_of(request), created_by=actor_of(request), idempotency_key=key)
        audit.record(actor_of(request), "quantize.submit", job.id, project=project_of(request), after={"output": order["output"]})
    return {
        "ok": True,
        "job_id": job.id,
        "model": job.config["output"],
        "url": f"/api/jobs/{job.id}",
        "stream": f"/api/jobs/{job.id}/stream",
    }


def quantize_reports(request: HttpRequest) -> dict[str, Any]:
    found = _visible_reports(request)
    baseline = request.GET.get("baseline", "")
    if baseline:
        found = found.filter(baseline=baseline)
    listed = list(found[:200])
    comparison = reports.pareto(listed) if baseline else []
    return {"ok": True, "reports": [reports.report_json(report) for report in listed], "pareto": comparison}


def quantize_report(request: HttpRequest, job_id: str) -> dict[str, Any]:
    report = _visible_reports(request).filter(pk=job_id).first()
    if report is None:
        raise Refusal(404, "report_not_found", "There is no such report.")
    return {"ok": True, "report": reports.report_json(report)}


def _visible_reports(request: HttpRequest) -> QuerySet[QualityReport]:
    identity = getattr(request, "identity", None)
    if identity is not None and not identity.is_admin:
        return QualityReport.objects.filter(project=project_of(request))
    return QualityReport.objects.all()
