"""Presets, the default model and evaluations on the running platform: what was chosen is what answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

ROWS = [{"messages": [{"role": "user", "content": "code?"}, {"role": "assistant", "content": "ZX-81"}]}] * 12
#: Seconds a hundred steps of the tiny model may take on a busy machine.
PATIENCE = 240


def finish(stack: Stack, job_id: str) -> dict[str, Any]:
    job = eventually(
        lambda: (j := stack.http.get(f"/api/jobs/{job_id}").json()["job"])["state"] in {"done", "failed"} and j,
        seconds=PATIENCE,
        what="the job",
    )
    assert job["state"] == "done", job
    return job


def ask(stack: Stack, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What is the capital of Japan?"}], **fields}
    answer = stack.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_preset_fills_what_requests_leave_open_and_narrows_the_window(stack: Stack) -> None:
    try:
        stack.http.put("/api/library/tiny/preset", json={"max_tokens": 2, "temperature": 0, "context": 128}).raise_for_status()
        eventually(lambda: ask(stack)["usage"]["completion_tokens"] == 2, what="the preset")
        assert ask(stack, max_tokens=4)["usage"]["completion_tokens"] == 4
        streams = [
            stack.http.post("/v1/completions", json={"model": "tiny", "prompt": "The capital of"}).json() for _ in range(2)
        ]
        assert streams[0]["choices"][0]["text"] == streams[1]["choices"][0]["text"]  # greedy, as the preset says
        message = stack.http.post(
            "/v1/messages", json={"model": "tiny", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}
        ).json()
        assert message["usage"]["output_tokens"] == 3
        too_long = stack.http.post("/v1/completions", json={"model": "tiny", "prompt": "word " * 200})
        assert too_long.status_code == 400 and "128" in too_long.json()["error"]["message"]
        shown = {model["id"]: model for model in stack.http.get("/v1/models").json()["data"]}
        eventually(
            lambda: {m["id"]: m for m in stack.http.get("/v1/models").json()["data"]}["tiny"]["context_window"] == 128,
            what=f"the window in the list, {shown['tiny']}",
        )
    finally:
        stack.http.delete("/api/library/tiny/preset")
    eventually(lambda: ask(stack)["usage"]["completion_tokens"] > 2, what="the preset gone")


def test_a_pin_is_kept_and_a_chosen_default_answers(stack: Stack) -> None:
    made = stack.http.post("/api/quantize/submit", json={"model": "tiny", "bits": 8, "output": "other", "report": False}).json()
    finish(stack, made["job_id"])
    eventually(lambda: "other" in {m["id"] for m in stack.http.get("/v1/models").json()["data"]}, what="the new model listed")

    def answers() -> str:
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        return str(stack.http.post("/v1/chat/completions", json=body).json()["model"])

    try:
        assert answers() == "tiny"
        stack.http.post("/api/library/other/default").raise_for_status()
        eventually(lambda: answers() == "other", what="the chosen default")
        assert stack.http.get("/fit").json()["model"] == "other"
        stack.http.post("/api/models/other/pin").raise_for_status()
        shown = {model["id"]: model for model in stack.http.get("/library").json()["models"]}
        assert shown["other"]["pinned"] and shown["other"]["default"] and not shown["tiny"]["default"]
    finally:
        stack.http.delete("/api/library/other/default")
        stack.http.post("/api/models/other/unpin")
    eventually(lambda: answers() == "tiny", what="the configured model again")

    def gone() -> bool:
        stack.http.post("/api/models/other/unload")  # refused while its last answer still counts as running
        return stack.http.delete("/api/library/other").status_code == 200

    eventually(gone, what="the model gone")


def test_chat_answers_while_a_run_trains_and_the_run_goes_on(stack: Stack) -> None:
    content = "".join(json.dumps(row) + "\n" for row in ROWS)
    file = stack.http.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("r.jsonl", content)}).json()
    order = {"model": "tiny", "training_file": file["id"], "iters": 1_000_000, "steps_per_report": 20}
    made = stack.http.post("/api/finetune/submit", json=order).json()

    def steps() -> int:
        found = stack.http.get(f"/api/finetune/{made['job_id']}/curve").json()["train"]
        return int(found[-1]["step"]) if found else 0

    try:
        eventually(lambda: steps() > 40, seconds=PATIENCE, what="the first steps")
        for _ in range(5):
            before = steps()
            assert ask(stack, temperature=0, max_tokens=12)["choices"][0]["message"]["content"].startswith("The capital of Japan")
            eventually(lambda before=before: steps() > before, seconds=PATIENCE, what="more steps after the answer")
        stages = stack.sql("select payload from jobs_jobevent where job_id = ? and type = 'stage'", made["job_id"])
        assert any("yielded" in payload for (payload,) in stages)
    finally:
        stack.http.post(f"/api/jobs/{made['job_id']}/cancel")
    eventually(
        lambda: stack.http.get(f"/api/jobs/{made['job_id']}").json()["job"]["state"] == "cancelled", seconds=30, what="the end"
    )


def test_an_evaluation_asks_base_and_fine_tuned_model_and_lets_a_judge_compare(stack: Stack) -> None:
    # No two the same: of equal rows, none is held back while another is learned.
    asked = [[{"role": "user", "content": f"{n}: code?"}, ROWS[0]["messages"][1]] for n in range(12)]
    content = "".join(json.dumps({"messages": messages}) + "\n" for messages in asked)
    file = stack.http.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("r.jsonl", content)}).json()
    order = {"model": "tiny", "training_file": file["id"], "iters": 300, "valid_fraction": 0.25, "suffix": "judged"}
    made = stack.http.post("/api/finetune/submit", json=order).json()
    finish(stack, made["job_id"])
    body = {"adapter": made["name"], "measures": ["loss", "exact_match", "judge"], "max_tokens": 16}
    ordered = stack.http.post("/api/finetune/evaluate", json=body)
    assert ordered.status_code == 200, ordered.text

    result = finish(stack, ordered.json()["job_id"])["result"]

    assert result["exact_match"] == {"base": 0.0, "tuned": 1.0}
    assert result["examples"][0]["tuned"] == "ZX-81" and result["examples"][0]["expected"] == "ZX-81"
    assert result["questions"] == 3 == sum(result["judge"][who] for who in ("base", "tuned", "tie"))
    assert result["loss"]["tuned"]["loss"] < result["loss"]["base"]["loss"]
    shown = stack.http.get(f"/api/adapters/{made['name']}").json()["adapter"]
    assert shown["metrics"]["evaluation"]["exact_match"] == {"base": 0.0, "tuned": 1.0}
