"""What a finished job of models came to, as its page tells it: what was made, where it is, and the figures people look for.

Pure functions of a job's kind and result. Results of older versions may lack a figure; it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from mlxplatform.console.templatetags.console import percent, size
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import DONE
from mlxplatform.training import finetuning

#: How a run ended besides at its last step.
_EARLY = {"early_stop": "stopped early: validation did not improve", "finish": "stopped by a person"}


@dataclass(frozen=True)
class Fact:
    """One line: ``url`` leads to what it names."""

    name: str
    text: str
    url: str = ""


@dataclass(frozen=True)
class Outcome:
    """``page`` is (address, name) of the page about what was made."""

    page: tuple[str, str] | None = None
    facts: list[Fact] = field(default_factory=list)


def outcome(job: Job) -> Outcome | None:
    """None: nothing was made, or the kind has no words of its own for it."""
    if job.state != DONE or not isinstance(job.result, dict) or job.kind not in _KINDS:
        return None
    page, facts = _KINDS[job.kind](job, job.result)
    return Outcome(page, [fact for fact in facts if fact.text])


_Told = tuple[tuple[str, str] | None, list[Fact]]


def _quantize(job: Job, result: Mapping[str, Any]) -> _Told:
    quality = result.get("quality") or {}
    perplexity = quality.get("perplexity") or {}
    before, after = _number(perplexity.get("baseline"), 2), _number(perplexity.get("quantized"), 2)
    return (reverse("console:report", args=[job.id]), "Quality report"), [
        _model("Made", result.get("model")),
        _model("From", result.get("baseline")),
        Fact("Size", _shrunk(result.get("bytes"), result.get("baseline_bytes"))),
        Fact("Bits per weight", _number(result.get("bits_per_weight"), 2)),
        Fact("Perplexity", f"{before} → {after}" if before and after else ""),
        Fact("KL divergence, mean", _number((quality.get("kl") or {}).get("mean"), 4)),
        Fact("Same first choice", percent(quality["same_top"]) if "same_top" in quality else ""),
    ]


def _finetune(job: Job, result: Mapping[str, Any]) -> _Told:
    made = str(result.get("model") or result.get("name") or "")
    steps, planned = result.get("steps"), result.get("planned_steps")
    how = _EARLY.get(str(result.get("outcome")), "")
    train, valid, best = (result.get(name) or {} for name in ("final_train", "final_val", "best"))
    kept = f"step {result['kept_step']}, the best" if result.get("kept") == "best" and "kept_step" in result else ""
    rows = ((result.get("dataset") or {}).get("train") or {}).get("rows_used")
    return _adapter_page(job, "What it made"), [
        Fact("Asked as", made, _chat(made)),
        _model("From", result.get("base_model")),
        Fact("Steps", f"{steps} of {planned}{', ' + how if how else ''}" if steps is not None else ""),
        Fact("Kept", kept),
        Fact("Training loss, last", _number(train.get("loss"), 4)),
        Fact("Validation loss, last", _number(valid.get("loss"), 4)),
        Fact("Validation loss, best", f"{_number(best['loss'], 4)} at step {best['step']}" if best else ""),
        Fact("Learned from", f"{rows} rows, {result.get('trained_tokens')} tokens" if rows else ""),
        Fact("Tokens per second", _number(train.get("tokens_per_sec"), 1)),
        Fact("Size", size(result["bytes"]) if result.get("bytes") else ""),
    ]


def _merge(job: Job, result: Mapping[str, Any]) -> _Told:
    made = str(result.get("name") or "")
    return _adapter_page(job, "What it made"), [
        Fact("Asked as", made, _chat(made)),
        Fact("Rank", str(result.get("rank") or "")),
        Fact("Size", size(result["bytes"]) if result.get("bytes") else ""),
    ]


def _fuse(job: Job, result: Mapping[str, Any]) -> _Told:
    layers = result.get("layers")
    return None, [
        _model("Made", result.get("model")),
        _model("From", result.get("base_model")),
        Fact("Layers changed", str(layers) if layers else ""),
        Fact("Size", size(result["bytes"]) if result.get("bytes") else ""),
    ]


def _export(job: Job, result: Mapping[str, Any]) -> _Told:
    files = result.get("files") or []
    return None, [Fact(str(file["filename"]), size(file["bytes"]), str(file["url"])) for file in files]


def _evaluate(job: Job, result: Mapping[str, Any]) -> _Told:
    loss, match, judge = (result.get(name) or {} for name in ("loss", "exact_match", "judge"))
    base, tuned = ((loss.get(who) or {}).get("loss") for who in ("base", "tuned"))
    page = reverse("console:adapter", args=[str(result["adapter"]).partition("-step-")[0]]) if result.get("adapter") else ""
    return (page, "Evaluation") if page else None, [
        Fact("Of", str(result.get("name") or "")),
        Fact("Loss", f"{_number(base, 4)} → {_number(tuned, 4)}" if base is not None and tuned is not None else ""),
        Fact("Exact match", f"{percent(match['base'])} → {percent(match['tuned'])}" if match else ""),
        Fact("Judged better", f"{judge['tuned']} times, worse {judge['base']}, tied {judge['tie']}" if judge else ""),
    ]


_KINDS: dict[str, Callable[[Job, Mapping[str, Any]], _Told]] = {
    "quantize": _quantize,
    "finetune": _finetune,
    "merge_adapters": _merge,
    "fuse": _fuse,
    "export_adapter": _export,
    "evaluate_adapter": _evaluate,
}


def _adapter_page(job: Job, name: str) -> tuple[str, str]:
    return reverse("console:adapter", args=[finetuning.adapter_id(job.id)]), name


def _model(name: str, model: Any) -> Fact:
    where = f"{reverse('console:model')}?{urlencode({'model': model})}" if model else ""
    return Fact(name, str(model or ""), where)


def _chat(model: str) -> str:
    return f"{reverse('console:chat')}?{urlencode({'model': model})}"


def _shrunk(made: Any, before: Any) -> str:
    if not made:
        return ""
    return f"{size(made)}, {percent(made / before)} of {size(before)}" if before else size(made)


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else ""
