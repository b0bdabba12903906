"""The starter model, for real: quantized twice with reports, fine-tuned on a dataset through a kill -9, and chatted with."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxplatform.library import local_models, starters
from tests.system.stack import Stack, eventually

pytestmark = [pytest.mark.stack, pytest.mark.drill, pytest.mark.timeout(3600)]

STARTER = local_models.STARTER
#: Rows of the dataset: few facts, all said in one manner, which fifty steps are enough to learn.
ROWS, STEPS, KILL_AT, SAVE_EVERY = 64, 50, 30, 10
THINGS = ("ferry", "kettle", "lantern", "anchor", "saddle", "barrel", "ladder", "compass")
COLOURS = ("red", "green", "blue", "white", "black", "yellow", "brown", "grey")
#: Seconds for the longest of it, measuring 211 layers twice each, on two busy cores.
PATIENCE = 2700.0
QUESTION = "Where is the red ferry?"


@pytest.fixture(scope="module")
def stack(home_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("starter") / "home"
    shutil.copytree(home_template, home)
    starters.ensure(home)
    with Stack(home, {"MLXPLATFORM_MODEL": STARTER}) as running:
        yield running


def job_of(stack: Stack, job_id: str) -> dict[str, Any]:
    return stack.http.get(f"/api/jobs/{job_id}").json()["job"]


def done(stack: Stack, job_id: str) -> dict[str, Any]:
    # Asked of the database: twenty requests a second, for minutes, cost a sixth of two cores.
    query = "select state from jobs_job where id = ?"
    eventually(lambda: stack.sql(query, job_id)[0][0] in {"done", "failed", "cancelled"}, seconds=PATIENCE, what=job_id)
    ended = job_of(stack, job_id)
    assert ended["state"] == "done", ended
    return ended


def post(stack: Stack, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = stack.http.post(path, json=body)
    assert answer.status_code in {200, 201, 202}, answer.text
    return answer.json()


def says(stack: Stack, model: str, question: str) -> str:
    message = {"role": "user", "content": question}
    answer = stack.openai(timeout=120).chat.completions.create(model=model, messages=[message], temperature=0, max_tokens=24)
    assert answer.model == model
    return str(answer.choices[0].message.content)


def pairs() -> str:
    named = [f"{colour} {thing}" for thing in THINGS for colour in COLOURS]
    assert len(named) == ROWS
    return "\n\n".join(f"Q: Where is the {name}?\nA: Ahoy! The {name} is in the harbour, captain." for name in named)


@pytest.mark.parametrize("scheme", [{"bits": 8}, {"target_bpw": 6.0}], ids=["8-bit", "mixed"])
def test_quantizing_the_starter_tells_what_it_cost(stack: Stack, scheme: dict[str, Any]) -> None:
    made = post(stack, "/api/quantize/submit", {"model": STARTER, "output": f"starter-{next(iter(scheme))}", **scheme})
    ended = done(stack, made["job_id"])

    report = stack.http.get(f"/api/quantize/reports/{made['job_id']}").json()["report"]
    quality = report["quality"]
    print(f"\n{ended['result']['model']}: {report['bits_per_weight']} bits, KL {quality['kl']}, {quality['perplexity']}")
    assert report["bytes"] < report["baseline_bytes"] * 0.6
    assert quality["kl"]["mean"] < (0.02 if "bits" in scheme else 0.2)
    assert quality["same_top"] > (0.95 if "bits" in scheme else 0.8)
    assert abs(quality["perplexity"]["ratio"] - 1) < 0.1
    assert says(stack, made["model"], "What is the capital of France?")


def test_fifty_steps_a_kill_at_thirty_a_resume_and_a_chat_with_the_result(stack: Stack) -> None:
    made = post(stack, "/api/dataset/submit", {"template": "sft_qa_pairs", "name": "ahoy", "inputs": {"pairs_text": pairs()}})
    dataset = done(stack, made["job_id"])["result"]
    assert dataset["n_train"] + dataset["n_valid"] == ROWS
    before = [says(stack, STARTER, question) for question in (QUESTION, "What is the capital of France?")]

    order = {
        "model": STARTER,
        "dataset": made["dataset_id"],
        "suffix": "ahoy",
        "iters": STEPS,
        "batch_size": 4,
        "max_seq_length": 128,
        "steps_per_report": 1,
        "steps_per_eval": 25,
        "steps_per_save": SAVE_EVERY,
    }
    run = post(stack, "/api/finetune/submit", order)
    curve = f"/api/finetune/{run['job_id']}/curve"
    eventually(
        lambda: [point["step"] for point in stack.http.get(curve).json()["train"]][-1] >= KILL_AT,
        seconds=PATIENCE,
        what="step 30",
    )
    trainers = [pid for pid, command in stack.descendants().items() if "workers.trainer.main" in command]
    for pid in trainers:
        os.kill(pid, signal.SIGKILL)
    assert len(trainers) == 1
    ended = done(stack, run["job_id"])

    assert ended["attempts"] == 2
    stages = stack.sql("select payload from jobs_jobevent where job_id = ? and type = 'stage'", run["job_id"])
    resumed = [int(found[1]) for (payload,) in stages if (found := re.search(r"Going on from step (\d+)", payload))]
    assert len(resumed) == 1 and KILL_AT - SAVE_EVERY <= resumed[0] < STEPS
    figures = stack.http.get(curve).json()
    assert [point["step"] for point in figures["train"]] == list(range(1, STEPS + 1))
    assert figures["val"][-1]["loss"] < figures["val"][0]["loss"] / 2

    assert says(stack, run["name"], QUESTION) == "Ahoy! The red ferry is in the harbour, captain."
    assert [says(stack, STARTER, question) for question in (QUESTION, "What is the capital of France?")] == before
    assert before[0] != "Ahoy! The red ferry is in the harbour, captain."
