"""Evaluating what fine-tuning made: orders, the judge's question, and what answers amount to. Pure besides the lookups.

Rows are held-out ones: those the run set apart, unless others are named. Three measures: loss on the rows'
answers; exact match of greedy answers; and a judge that reads both answers in both orders, so that a
preference for the first place cancels out (two verdicts that contradict each other are a tie).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from mlxplatform.http.fields import Field, invalid, read
from mlxplatform.inference.contract import Message, Refusal
from mlxplatform.library import local_models
from mlxplatform.training import data, finetuning, registry, rows
from mlxplatform.training.models import Adapter

KIND = "evaluate_adapter"
MEASURES = ("loss", "exact_match", "judge")
#: What the judge may say: the first answer, the second, or neither.
VERDICTS = ("A", "B", "tie")
#: Rows of any kind can be measured; preferences count their chosen answer.
ROW_FORMATS = ("messages", "prompt_completion", "text", "preference")

FIELDS = (
    Field("adapter", "text", required=True, high=255, doc="Id or name of the adapter"),
    Field("dataset", "text", high=100, doc="Rows to measure on: a dataset's validation rows; the run's own when absent"),
    Field("file", "text", high=100, doc="Rows to measure on: an uploaded file"),
    Field("measures", "names", ["loss", "exact_match"], doc="loss, exact_match, judge"),
    Field("max_examples", "int", 64, low=1, high=10_000, doc="Rows used"),
    Field("max_tokens", "int", 128, low=1, high=4096, doc="Longest answer"),
    Field("judge_model", "text", high=255, doc="Model that compares answers; the base when absent"),
)


@dataclass(frozen=True)
class Question:
    """A held-out row as a question with the answer it should have."""

    ordinal: int
    asked: list[Message]
    expected: str


def check(body: dict[str, Any], project: str | None) -> dict[str, Any]:
    """The complete order.

    Raises:
        Refusal: with the field that is wrong.
    """
    order = read(body, FIELDS, ignore=("idempotency_key",))
    chosen = registry.choose(order["adapter"], project)
    if chosen.files is None:
        registry.trained_model(chosen.adapter)
    base = registry.base_of(chosen.adapter)
    unknown = [name for name in order["measures"] if name not in MEASURES]
    if unknown:
        raise invalid("measures", f"{unknown[0]} is no measure; there are {', '.join(MEASURES)}.")
    if order["judge_model"] is not None:
        if "judge" not in order["measures"]:
            raise invalid("judge_model", "judge_model goes with the measure judge.")
        if local_models.find(order["judge_model"], settings.HOME) is None:
            raise Refusal(404, "model_not_found", "There is no such model to judge.", param="judge_model")
    held = _held(order, chosen.adapter, project)
    return {
        "adapter": chosen.id,
        "model": base.id,
        "revision": base.revision,
        "measures": [name for name in MEASURES if name in order["measures"]],
        "max_examples": order["max_examples"],
        "max_tokens": order["max_tokens"],
        "judge_model": order["judge_model"] or base.id,
        **held,
    }


def _held(order: dict[str, Any], adapter: Adapter, project: str | None) -> dict[str, Any]:
    """Which rows: ``data`` by ids, ``part`` of it, and the share of that part that was set apart."""
    if order["dataset"] is not None and order["file"] is not None:
        raise invalid("file", "Name one source of rows: dataset or file.")
    if order["file"] is not None:
        chosen = {"training_file": data.file(order["file"], project, "file").id}
        data.inspect(chosen, ROW_FORMATS, param="file")
        return {"data": chosen, "part": "train", "held_fraction": 0.0}
    if order["dataset"] is not None:
        chosen = data.choose({"dataset": order["dataset"], "training_file": None, "validation_file": None}, project)
        if data.paths(chosen)[1] is None:
            raise invalid("dataset", "This dataset has no validation rows; upload rows and give file.")
        return {"data": chosen, "part": "valid", "held_fraction": 0.0}
    if adapter.method == "merge":
        raise Refusal(400, "no_held_out_rows", "A merged adapter has no rows of its own; give dataset or file.", param="file")
    config, chosen = adapter.config, _named_by(adapter)
    try:
        _, valid = data.paths(chosen)
    except Refusal:
        message = "The rows of the run are not there any more; give dataset or file."
        raise Refusal(400, "no_held_out_rows", message, param="file") from None
    if valid is not None:
        return {"data": chosen, "part": "valid", "held_fraction": 0.0}
    if config.get("valid_fraction"):
        return {"data": chosen, "part": "train", "held_fraction": config["valid_fraction"]}
    message = "The run set no rows apart; give dataset or file with rows it has not seen."
    raise Refusal(400, "no_held_out_rows", message, param="file")


def _named_by(adapter: Adapter) -> dict[str, Any]:
    """The data the run learned from, by ids."""
    if "dataset" in adapter.lineage:
        return {name: adapter.lineage[name] for name in ("dataset", "version")}
    named = {name: adapter.config.get(name) for name in ("training_file", "validation_file")}
    return {name: value for name, value in named.items() if value}


def questions(found: Sequence[tuple[int, dict[str, Any]]], limit: int) -> list[Question]:
    """Rows that end in an answer, as questions."""
    made = []
    for ordinal, (_, row) in enumerate(found[:limit]):
        example = rows.example(row)
        if len(example.turns) > 1 and example.turns[-1].role == "assistant" and example.turns[-1].content:
            made.append(Question(ordinal, list(example.turns[:-1]), example.turns[-1].content))
    return made


def matches(answer: str, expected: str) -> bool:
    """Equal but for case and white space."""
    return " ".join(answer.split()).casefold() == " ".join(expected.split()).casefold()


def judge_prompt(question: Question, first: str, second: str) -> list[Message]:
    asked = "\n".join(f"{turn.role}: {turn.content or ''}" for turn in question.asked)
    text = (
        "Two assistants answered the same request. Decide which answer is better: correct, close to the reference in "
        "content, and in the manner that was wanted. Length alone is no merit.\n\n"
        f"Request:\n{asked}\n\nReference answer:\n{question.expected}\n\n"
        f"Answer A:\n{first}\n\nAnswer B:\n{second}\n\nSay A, B, or tie, and nothing else."
    )
    return [Message("user", text)]


def winner(tuned_second: str, tuned_first: str) -> str:
    """``tuned``, ``base`` or ``tie`` from two verdicts: with the tuned answer as B, then as A."""
    if tuned_second == "B" and tuned_first == "A":
        return "tuned"
    if tuned_second == "A" and tuned_first == "B":
        return "base"
    return "tie"


def defaults(adapter: Adapter) -> dict[str, Any]:
    """How the run counted tokens, so that its losses and ours can be compared."""
    own = {field.name: field.default for field in finetuning.FIELDS} | {"max_seq_length": finetuning.SEQUENCE}
    names = ("max_seq_length", "mask_prompt", "loss_on", "seed")
    return {name: adapter.config.get(name, own[name]) for name in names}
