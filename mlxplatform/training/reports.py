"""Quality reports: kept once per job, shown, and compared along size against divergence."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings

from mlxplatform.jobs.context import JobFailed
from mlxplatform.library import local_models
from mlxplatform.training.models import QualityReport

#: File the trainer leaves in the model's directory.
FILE = "quantization_report.json"


def keep(job_id: str, project: str, figures: dict[str, Any]) -> QualityReport:
    """Store a job's report; repeating it changes nothing."""
    quality = figures.get("quality") or {}
    report, _ = QualityReport.objects.update_or_create(
        job=job_id,
        defaults={
            "project": project,
            "model": figures["model"],
            "baseline": figures["baseline"],
            "baseline_revision": figures["baseline_revision"],
            "bytes": figures["bytes"],
            "bits_per_weight": figures["bits_per_weight"],
            "kl_mean": (quality.get("kl") or {}).get("mean"),
            "figures": figures,
        },
    )
    return report


def kept(job_id: str, project: str) -> dict[str, Any]:
    """The figures of a model that an earlier attempt published, from its own directory."""
    model = next((m for m in local_models.scan(settings.HOME) if m.provenance.get("job") == job_id), None)
    if model is None:
        raise JobFailed("model_not_found", "The published model is not there any more.")
    figures: dict[str, Any] = json.loads((model.path / FILE).read_text())
    keep(job_id, project, figures)
    return {**figures, "url": f"/api/quantize/reports/{job_id}"}


def report_json(report: QualityReport) -> dict[str, Any]:
    return {"job_id": report.job, "created_at": report.created_at.isoformat(), **report.figures}


def pareto(reports: list[QualityReport]) -> list[dict[str, Any]]:
    """Size against divergence for the models of one baseline; ``best`` marks those no other beats in both."""
    points = [((report.bytes, report.kl_mean), report) for report in reports if report.kl_mean is not None]
    shown = []
    for place, report in sorted(points, key=lambda point: point[0]):
        beaten = any(other != place and other[0] <= place[0] and other[1] <= place[1] for other, _ in points)
        shown.append(
            {
                "job_id": report.job,
                "model": report.model,
                "bytes": report.bytes,
                "bits_per_weight": report.bits_per_weight,
                "kl_mean": report.kl_mean,
                "best": not beaten,
            }
        )
    return shown
