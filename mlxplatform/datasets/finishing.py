"""From settled rows to published files: split, write, checksum, and flip the version to ready."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import Any

from django.db import transaction
from django.utils import timezone

from mlxplatform.datasets import publish as publishing
from mlxplatform.datasets import quality, rowstore
from mlxplatform.datasets.card import card
from mlxplatform.datasets.leaks import leaks
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.datasets.options import stored
from mlxplatform.datasets.split import split_at
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.jobs.context import JobContext, OwnershipLost
from mlxplatform.jobs.models import Job

#: Characters of an input kept in meta.json; the rest is represented by its hash.
SHOWN_INPUT = 2_000

NO_VALIDATION = "There is one row only, so the validation set is empty."
TOO_FEW_NEW = "Further rounds over the sources brought too few new ones."
NO_MORE_SOURCES = "The sources give no more."
PROMPTS_ONLY = "The rows are prompts only: fill the answers (template answer_fill) before training on them."


def publish(version_id: int, ctx: JobContext, seconds: float) -> DatasetVersion:
    """Write and publish the files, then make the version ready, if this attempt still owns the job.

    Raises:
        OwnershipLost: another attempt has taken over; nothing it can see was changed.
    """
    version = DatasetVersion.objects.select_related("dataset").get(pk=version_id)
    template = TEMPLATES[ctx.config["template"]]
    accepted, dropped = rowstore.counts(version_id)
    cut = split_at(accepted, stored(version.options).valid_fraction)
    prompts_only = template.prompts_only(version.inputs)
    notes = [note for note, holds in ((NO_VALIDATION, accepted == 1), (PROMPTS_ONLY, prompts_only)) if holds]
    target = stored(version.options).rows
    if target is not None and accepted < target:
        why = TOO_FEW_NEW if template.repeatable else NO_MORE_SOURCES
        notes.append(f"{target} rows were asked for; {accepted} are distinct and acceptable. {why}")
    counts = {
        "made": accepted + sum(dropped.values()),
        "accepted": accepted,
        "train": cut,
        "valid": accepted - cut,
        "dropped": dict(dropped.most_common()),
    }
    version.counts, version.notes, version.trainable = counts, notes, not prompts_only
    version.report = {**version.report, **quality.report(version_id, ctx.job_id, seconds)}
    version.report["leaks"] = _leaks(version_id, cut)
    train_ids: list[int] = []
    valid_ids: list[int] = []
    with publishing.Publication(version.dataset_id, version.number, ctx.fence) as publication:
        rows = rowstore.accepted_rows(version_id)
        for name, ids, part in (("train.jsonl", train_ids, islice(rows, cut)), ("valid.jsonl", valid_ids, rows)):
            out = publication.file(name)
            for row_id, content in part:
                out.write(publishing.to_line(content), rows=1)
                ids.append(row_id)
        ctx.check()
        meta = meta_of(version)
        publication.file("README.md").write(card(version, meta, template.label).encode("utf-8", "replace"))
        published = publication.finish(meta)
    with transaction.atomic():
        if not Job.objects.select_for_update().filter(pk=ctx.job_id, fence=ctx.fence).exists():
            raise OwnershipLost(ctx.job_id)
        rowstore.mark_split(version_id, train_ids, valid_ids)
        version.files, version.location = published.files, published.location
        version.state, version.ready_at = DatasetVersion.State.READY, timezone.now()
        version.save()
    publishing.remove_leftovers(version.dataset_id, version.number, version.location)
    return version


def _leaks(version_id: int, cut: int) -> dict[str, int]:
    """Rows or questions that are in both parts."""
    rows = (content for _, content in rowstore.accepted_rows(version_id))
    return leaks(islice(rows, cut), rows)


def meta_of(version: DatasetVersion) -> dict[str, Any]:
    """What ``meta.json`` says: enough to know what this is and to make it again."""
    return {
        "dataset": version.dataset_id,
        "name": version.dataset.name,
        "version": version.number,
        "template": version.dataset.template,
        "output_format": version.output_format,
        "trainable": version.trainable,
        "notes": version.notes,
        "counts": version.counts,
        "model": version.report.get("model"),
        "model_revision": version.report.get("model_revision"),
        "options": version.options,
        "inputs": {name: _shown(value) for name, value in version.inputs.items()},
        "job": version.job,
        "created_at": version.created_at.isoformat(),
    }


def _shown(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= SHOWN_INPUT:
        return value
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return {"start": text[:SHOWN_INPUT], "chars": len(text), "sha256": digest}


def sentence(version: DatasetVersion) -> str:
    """One line for a person."""
    counts = version.counts
    dropped = sum(counts["dropped"].values())
    parts = [f"{counts['train']} train and {counts['valid']} validation rows"]
    if dropped:
        parts.append(f"{dropped} dropped ({', '.join(f'{n} {reason}' for reason, n in list(counts['dropped'].items())[:6])})")
    return "; ".join([*parts, *version.notes])
