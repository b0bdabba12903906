"""Taking a dataset order: check everything, then a dataset, a version and a job in one transaction."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from mlxplatform.accounts import audit
from mlxplatform.datasets import inputs as input_fields
from mlxplatform.datasets import options as run_options
from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.datasets.templates.base import Template, final_format
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job

KIND, PREVIEW_KIND = "dataset", "dataset_preview"
PREVIEW_LIFETIME = timedelta(days=1)
#: Sources a preview runs.
PREVIEW_ROWS, MAX_PREVIEW_ROWS = 10, 50

FIELDS = frozenset(
    {
        "template",
        "template_id",
        "inputs",
        "model",
        "model_name",
        "name",
        "description",
        "tags",
        "rows",
        "seed",
        "temperature",
        "top_p",
        "valid_fraction",
        "filters",
        "preview",
        "resume",
        "dataset",
        "idempotency_key",
    }
)
_TAG = re.compile(r"^[\w.:-]{1,50}\Z")


@dataclass(frozen=True)
class Order:
    """A checked submission."""

    template: Template
    inputs: input_fields.Inputs
    options: run_options.Options
    name: str
    description: str
    tags: list[str]
    base: DatasetVersion | None
    #: What a preview expects of this run, kept to be compared with what it really takes.
    forecast: dict[str, Any] | None = None


def check(body: dict[str, Any], project: str) -> Order:
    """Everything a submission says, or the first thing wrong with it.

    Raises:
        Refusal: 400 naming the field, 404 for a dataset or preview that does not exist, 501 for a template that
            cannot run here.
    """
    for name in body:
        if name not in FIELDS:
            raise Refusal(400, "unknown_field", f"{name} is not a field; the fields are {', '.join(sorted(FIELDS))}", param=name)
    input_fields.refuse_nul(body)
    named = "template_id" if "template_id" in body and "template" not in body else "template"
    template = find_template(body.get(named), named)
    base = _base(body, project)
    given = body.get("inputs")
    if base is not None and given is None:
        given = base.inputs
    checked = input_fields.coerce(template, given)
    if template.check_inputs:
        template.check_inputs(checked, project)
    options = run_options.parse(template, body)
    ancestors = _ancestors(body, base, project)
    if base is not None:
        options = run_options.continued(options, run_options.stored(base.options), body)
    return Order(
        template=template,
        inputs=checked,
        options=msgspec.structs.replace(options, ancestors=ancestors),
        name=_text(body, "name", 200) or template.label,
        description=_text(body, "description", 10_000),
        tags=parse_tags(body.get("tags")),
        base=base,
        forecast=_forecast(body),
    )


def _forecast(body: dict[str, Any]) -> dict[str, Any] | None:
    version = DatasetVersion.objects.filter(job=str(body["preview"])).first() if body.get("preview") is not None else None
    return version.report.get("forecast") if version else None


def find_template(raw: Any, field: str = "template") -> Template:
    """Raises Refusal 400 for an unknown template, 501 for one that cannot run here."""
    if not isinstance(raw, str) or not raw:
        raise Refusal(400, "missing_field", f"{field} is required; the templates are {', '.join(TEMPLATES)}", param=field)
    template = TEMPLATES.get(raw)
    if template is None:
        known = ", ".join(TEMPLATES)
        raise Refusal(400, "unknown_template", f"there is no template {raw[:60]!r}; the templates are {known}", param=field)
    reason = template.unavailable()
    if reason:
        raise Refusal(501, "unsupported_execution", reason, param=field)
    return template


def _text(body: dict[str, Any], name: str, longest: int) -> str:
    raw = body.get(name)
    if raw is None:
        return ""
    if not isinstance(raw, str) or len(raw) > longest:
        raise bad(name, f"{name} must be text of at most {longest} characters")
    return raw.strip()


def parse_tags(raw: Any) -> list[str]:
    if raw is None:
        return []
    if not isinstance(raw, list) or len(raw) > 20 or not all(isinstance(tag, str) and _TAG.match(tag) for tag in raw):
        raise bad("tags", "tags must be a list of at most 20 short words (letters, digits, . : - _)")
    return list(dict.fromkeys(raw))


def _base(body: dict[str, Any], project: str) -> DatasetVersion | None:
    """The latest version of the dataset this order continues ("resume" or "dataset")."""
    name = "resume" if body.get("resume") is not None else "dataset"
    raw = body.get(name)
    if raw is None:
        return None
    found = DatasetVersion.objects.filter(dataset=str(raw), dataset__project=project, dataset__preview=False)
    version = found.order_by("-number").first()
    if version is None:
        raise Refusal(404, "dataset_not_found", "dataset not found", param=name)
    return version


def _ancestors(body: dict[str, Any], base: DatasetVersion | None, project: str) -> list[str]:
    """Jobs whose finished calls this run may use: those of the version it continues, and its preview."""
    jobs: list[str] = []
    if base is not None:
        jobs = [*run_options.stored(base.options).ancestors, base.job]
    preview = body.get("preview")
    if preview is not None:
        if not Job.objects.filter(pk=str(preview), kind=PREVIEW_KIND, project=project).exists():
            raise Refusal(404, "job_not_found", "there is no preview of this id", param="preview")
        jobs.append(str(preview))
    return [job for job in dict.fromkeys(jobs) if job]


def submit(order: Order, *, project: str, created_by: str = "", idempotency_key: str | None = None) -> tuple[Job, DatasetVersion]:
    """Create the dataset (or its next version) and its job. The same idempotency key gives the same pair.

    Raises:
        Refusal: the key was used for another order, or the dataset is being built already.
    """
    key = idempotency_key
    token = hashlib.sha256(f"{project}\x00{key}".encode()).hexdigest() if key else secrets.token_hex(32)
    with transaction.atomic():
        if order.base is not None:
            dataset = Dataset.objects.select_for_update().get(pk=order.base.dataset_id)
            if dataset.template != order.template.id:
                raise bad("template", f"the dataset was made by {dataset.template}; start a new one for another template")
        else:
            dataset, _ = Dataset.objects.get_or_create(
                pk=f"ds_{token[:16]}",
                defaults={
                    "name": order.name,
                    "template": order.template.id,
                    "description": order.description,
                    "tags": order.tags,
                    "project": project,
                    "created_by": created_by,
                },
            )
        config = {
            "dataset": dataset.id,
            "name": dataset.name,
            "template": order.template.id,
            "order": order_digest(order),
            "rows": order.options.rows,
        }
        job = service.submit(KIND, config, project=project, created_by=created_by, idempotency_key=key)
        version = DatasetVersion.objects.filter(job=job.id).first()
        if version is not None:
            return job, version
        if dataset.versions.filter(state=DatasetVersion.State.BUILDING).exists():
            raise Refusal(
                400, "already_building", "a version of this dataset is being made; wait for it or cancel it", param="resume"
            )
        last = dataset.versions.order_by("-number").values_list("number", flat=True).first() or 0
        version = _new_version(dataset, last + 1, order, job)
        audit.record(created_by, "dataset.submit", dataset.id, project=project, after={"version": version.number, "job": job.id})
    return job, version


def submit_preview(order: Order, rows: int, *, project: str, created_by: str = "") -> Job:
    """A trial of the first ``rows`` sources, whose finished calls the full run may use."""
    target = order.options.rows
    limited = msgspec.structs.replace(order.options, rows=None, limit=rows)
    with transaction.atomic():
        dataset = Dataset.objects.create(
            name=order.name, template=order.template.id, project=project, created_by=created_by, preview=True
        )
        config = {"name": order.name, "template": order.template.id, "rows": rows}
        job = service.submit(PREVIEW_KIND, config, project=project, created_by=created_by)
        version = _new_version(dataset, 1, replace(order, options=limited), job)
        version.options = {**version.options, **({"target": target} if target else {})}
        version.save(update_fields=["options"])
    return job


def of_preview(version: DatasetVersion) -> Order:
    """The full run of what a preview tried, using its finished calls."""
    options = run_options.stored(version.options)
    return Order(
        template=find_template(version.dataset.template),
        inputs=version.inputs,
        options=msgspec.structs.replace(
            options, limit=None, rows=version.options.get("target"), ancestors=[*options.ancestors, version.job]
        ),
        name=version.dataset.name,
        description="",
        tags=[],
        base=version.parent,
        forecast=version.report.get("forecast"),
    )


def sweep_previews() -> int:
    """Remove previews of yesterday with their rows."""
    old = Dataset.objects.filter(preview=True, created_at__lt=timezone.now() - PREVIEW_LIFETIME)
    return old.delete()[0]


def _new_version(dataset: Dataset, number: int, order: Order, job: Job) -> DatasetVersion:
    return DatasetVersion.objects.create(
        dataset=dataset,
        number=number,
        job=job.id,
        parent=order.base,
        output_format=final_format(order.template, order.inputs),
        inputs=dict(order.inputs),
        options=run_options.dump(order.options),
        trainable=not order.template.prompts_only(order.inputs),
        report={"forecast": order.forecast} if order.forecast else {},
    )


def order_digest(order: Order) -> str:
    """Identity of what was ordered; a seed that was drawn for the order does not count."""
    told = msgspec.structs.replace(order.options, seed=0)
    raw = msgspec.json.encode([order.template.id, dict(order.inputs), run_options.dump(told)], order="deterministic")
    return hashlib.sha256(raw).hexdigest()[:32]
