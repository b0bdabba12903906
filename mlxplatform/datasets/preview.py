"""A preview's result: every row with all that was asked and said for it, and the forecast of the full run."""

from __future__ import annotations

from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from mlxplatform.datasets import quality, rowstore
from mlxplatform.datasets.forecast import Sample, forecast
from mlxplatform.datasets.models import DatasetRow, DatasetVersion
from mlxplatform.datasets.options import MAX_ROUNDS
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.datasets.wire import row_json
from mlxplatform.inference.contract import InferenceRequest, decode_request
from mlxplatform.rows.contract import decode_output
from mlxplatform.rows.models import RowCall

#: Characters of a prompt or an answer that are shown.
SHOWN_CHARS = 4_000
#: Rows and calls in one preview's result.
SHOWN_ROWS, SHOWN_CALLS = 200, 500


def calls_of(job: str, source: str = "") -> list[dict[str, Any]]:
    """The calls of a job, or of one source of it, with prompts and what came of them."""
    calls = RowCall.objects.filter(job=job)
    if source:
        calls = calls.filter(key__startswith=f"{source}:")
    return [_call_json(call) for call in calls.order_by("ordinal", "id")[:SHOWN_CALLS]]


def _call_json(call: RowCall) -> dict[str, Any]:
    source, _, step = call.key.rpartition(":")
    request = decode_request(bytes(call.request))
    shown: dict[str, Any] = {"source": source, "step": step, "prompt": _prompt(request), "max_tokens": request.max_tokens}
    shown |= {"model": request.model, "sampling": msgspec.to_builtins(request.sampling)}
    if call.output is not None:
        output = decode_output(bytes(call.output))
        usage = output.usage
        shown |= {"answer": output.text[:SHOWN_CHARS], "finish_reason": output.finish_reason}
        shown |= {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion}
    else:
        shown["error"] = call.error
    return shown


def _prompt(request: InferenceRequest) -> list[dict[str, str]]:
    if request.prompt is not None:
        return [{"role": "prompt", "content": str(request.prompt)[:SHOWN_CHARS]}]
    return [{"role": message.role, "content": (message.content or "")[:SHOWN_CHARS]} for message in request.messages]


def finish(version: DatasetVersion, sources_run: int, all_sources: int, seconds: float) -> dict[str, Any]:
    """Mark the preview ready and describe it. It has no files."""
    accepted, dropped = rowstore.counts(version.pk)
    spent = quality.spent(version.job)
    inputs_dropped = version.rows.filter(source__startswith="input.").count()
    sample = Sample(
        sources=sources_run,
        made=accepted + sum(dropped.values()) - inputs_dropped,
        accepted=accepted,
        prompt_tokens=spent["prompt_tokens"],
        completion_tokens=spent["completion_tokens"],
        calls=spent["calls"],
        seconds=round(seconds, 3),
    )
    target = version.options.get("target")
    rounds = MAX_ROUNDS if target and TEMPLATES[version.dataset.template].repeatable else 1
    expected = forecast(sample, all_sources, target, settings.ENV.rows_at_once, rounds)
    with transaction.atomic():
        version.counts = {"accepted": accepted, "dropped": dict(dropped.most_common())}
        version.report = {**version.report, "forecast": expected}
        version.state, version.ready_at = DatasetVersion.State.READY, timezone.now()
        version.save()
    rows = DatasetRow.objects.filter(version=version).order_by("ordinal")[:SHOWN_ROWS]
    return {
        "preview": True,
        "rows": [row_json(row) for row in rows],
        "calls": calls_of(version.job),
        "counts": version.counts,
        "forecast": expected,
    }
