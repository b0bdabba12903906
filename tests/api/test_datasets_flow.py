"""Every template that asks a model, run against the real one: each call answered, every source accounted for.

The tiny model writes nonsense; what is shown is the flow. What templates make of sensible answers is in the unit tests.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxplatform.datasets import sandbox
from mlxplatform.datasets.templates.registry import TEMPLATES
from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

TEXTS = "The Rhine flows 1,230 kilometres from the Alps to the sea.\n\nYeast turns sugar into carbon dioxide, so bread rises."
LINES = "What is the capital of Japan?\nWhat is the capital of Italy?"
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
#: Inputs by template, and the sources they make.
INPUTS: dict[str, tuple[dict[str, Any], int]] = {
    "style_transfer": ({"reference_samples": "Aye, rough it was.", "raw_text": TEXTS}, 2),
    "self_instruct": ({"seeds": LINES, "variants_per_seed": 2}, 2),
    "prompt_reconstruction": ({"target_text": TEXTS}, 2),
    "multi_turn_chat": ({"seeds": LINES, "turns": 3}, 2),
    "tool_use_traces": ({"tools_json": [TOOL], "scenarios": LINES, "mock_results": "sunny\nrain"}, 2),
    "rag_qa": ({"documents": TEXTS, "questions_per_chunk": 1, "min_chunk_chars": 40}, 2),
    "cot_synthesis": ({"questions": LINES}, 2),
    "verified_code": ({"specs": LINES}, 2),
    "column_prompts": ({"rows": '{"n": 1}\n{"n": 2}', "prompt_template": "Tell me about {{ n }}."}, 2),
    "answer_fill": ({}, 2),
    "evol_instruct": ({"seeds": LINES, "steps": 1}, 2),
    "magpie": ({"draws": 2}, 2),
    "persona_qa": ({"personas": LINES, "questions_each": 1}, 2),
    "topic_tree": ({"topics": "cooking", "depth": 1, "branches": 2, "questions_per_leaf": 1}, 1),
    "preference_pairs": ({"prompts": LINES, "answers": 2}, 2),
    "structured_extraction": (
        {"texts": TEXTS, "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
        2,
    ),
    "translation": ({"texts": TEXTS, "languages": "French"}, 2),
    "back_translation": ({"texts": TEXTS, "min_grade": 1}, 2),
}


def test_every_template_that_asks_a_model_is_here() -> None:
    assert set(INPUTS) == {name for name, template in TEMPLATES.items() if template.needs_llm}


def _ended(stack: Stack, job: str) -> dict[str, Any]:
    def look() -> Any:
        found = stack.http.get(f"/api/jobs/{job}").json()["job"]
        return found if found["state"] in {"done", "failed", "cancelled"} else None

    return dict(eventually(look, seconds=180, what=f"the end of {job}"))


def _submit(stack: Stack, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = stack.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _instructions(stack: Stack) -> dict[str, Any]:
    """A dataset of instructions without answers. What a tiny model makes up may all be dropped, so it gets several tries."""
    for seed in range(8):
        inputs = {"seeds": LINES, "variants_per_seed": 4}
        made = _submit(stack, "/api/dataset/submit", {"template": "self_instruct", "inputs": inputs, "seed": seed})
        end = _ended(stack, made["job_id"])
        if end["state"] == "done" and end["result"]["n_train"] + end["result"]["n_valid"] >= INPUTS["answer_fill"][1]:
            return made
        assert end["state"] == "done" or "produced 0 rows" in end["error"], end
    raise AssertionError("no seed gave enough rows")


def test_every_template_flows_through_a_real_model(stack: Stack) -> None:
    prompts = _instructions(stack)
    jobs: dict[str, str] = {}
    for name, (inputs, _) in INPUTS.items():
        if name == "verified_code" and not sandbox.kind_here():
            continue  # refused by name, which its own tests show
        given = {"dataset_id": prompts["dataset_id"]} if name == "answer_fill" else inputs
        body = {"template": name, "inputs": given, "seed": 5, "preview_rows": 2, "filters": {"refusals": False}}
        jobs[name] = _submit(stack, "/api/dataset/preview", body)["job_id"]
    for name, job in jobs.items():
        end = _ended(stack, job)
        assert end["state"] == "done", (name, end["error"])
        shown = end["result"]
        sources = {row["source"] for row in shown["rows"]}
        assert len(sources) == INPUTS[name][1], (name, json.dumps(shown["rows"])[:2000])
        failed = [row for row in shown["rows"] if str(row["reason"]).startswith("call_failed")]
        assert not failed, (name, failed)
        assert {call["source"] for call in shown["calls"]} == sources and not [call for call in shown["calls"] if "error" in call]
        assert shown["forecast"]["calls"] >= len(shown["calls"]) > 0
        assert name != "structured_extraction" or [row["state"] for row in shown["rows"]] == ["accepted"] * 2, shown["rows"]
