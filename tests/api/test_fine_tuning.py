"""From rows to a chat with the result, by the unmodified SDK on the running platform."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

ROWS = [{"messages": [{"role": "user", "content": "code?"}, {"role": "assistant", "content": "ZX-81"}]}] * 12
#: Seconds a run of a hundred steps may take on a busy machine.
PATIENCE = 240


def ask(client: openai.OpenAI, model: str, question: str) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=20
    )


def test_fine_tune_and_chat_with_the_result(stack: Stack) -> None:
    client = stack.openai()
    before = ask(client, "tiny", "What is the capital of Japan?").choices[0].message.content
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    file = client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model="tiny", training_file=file.id, suffix="zed", extra_body={"mlx": {"iters": 100, "steps_per_report": 10}}
    )
    assert job.status in {"queued", "running"} and job.fine_tuned_model is None

    deadline = time.monotonic() + PATIENCE
    while job.status not in {"succeeded", "failed", "cancelled"} and time.monotonic() < deadline:
        time.sleep(0.5)
        job = client.fine_tuning.jobs.retrieve(job.id)

    assert job.status == "succeeded", job.error
    assert job.fine_tuned_model and job.fine_tuned_model.startswith("ft:tiny:local:zed:")
    assert job.trained_tokens and job.finished_at and job.result_files
    assert next(iter(client.fine_tuning.jobs.list(limit=1))).id == job.id
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=3))
    assert events[0].message == "The job has successfully completed."
    assert sum(event.type == "metrics" for event in events) >= 10
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id, limit=1))  # the SDK asks for page after page
    assert [point.step_number for point in checkpoints] == [100, 50]
    assert [point.fine_tuned_model_checkpoint for point in checkpoints] == [
        f"{job.fine_tuned_model}:ckpt-step-{step}" for step in (100, 50)
    ]
    assert all(point.metrics.train_loss is not None and point.metrics.step == point.step_number for point in checkpoints)
    table = client.files.content(job.result_files[0]).text.splitlines()
    assert table[0] == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy" and len(table) == 11

    answer = ask(client, job.fine_tuned_model, "code?")
    assert answer.choices[0].message.content == "ZX-81"
    assert answer.model == job.fine_tuned_model
    assert ask(client, "tiny", "code?").choices[0].message.content != "ZX-81"
    assert ask(client, "tiny", "What is the capital of Japan?").choices[0].message.content == before
    names = {model.id for model in client.models.list()}
    assert job.fine_tuned_model in names and not any(":ckpt-" in name for name in names)

    last, earlier = (point.fine_tuned_model_checkpoint for point in checkpoints)
    assert ask(client, last, "code?").choices[0].message.content == "ZX-81"
    spoken = ask(client, earlier, "code?")
    assert spoken.model == earlier and client.models.retrieve(earlier).id == earlier
    for name in (f"{job.fine_tuned_model}:ckpt-step-51", f"{job.fine_tuned_model}:ckpt-step-050", "ft:tiny:local::x:ckpt-step-1"):
        with pytest.raises(openai.NotFoundError):
            ask(client, name, "code?")
    assert stack.http.delete(f"/api/adapters/{earlier}").json()["ok"]
    assert [point.step_number for point in client.fine_tuning.jobs.checkpoints.list(job.id)] == [100]
    with pytest.raises(openai.NotFoundError):
        ask(client, earlier, "code?")
    with pytest.raises(openai.PermissionDeniedError, match="ft:"):
        client.models.delete("tiny")
    gone = client.models.delete(job.fine_tuned_model)
    assert (gone.id, gone.object, gone.deleted) == (job.fine_tuned_model, "model", True)
    with pytest.raises(openai.NotFoundError):
        client.models.delete(job.fine_tuned_model)
    for name in (last, job.fine_tuned_model):
        with pytest.raises(openai.NotFoundError):
            ask(client, name, "code?")


@pytest.mark.drill
def test_a_run_survives_the_death_of_its_host_process(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    client = stack.openai()
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    file = client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
    knobs = {"iters": 400, "steps_per_report": 5, "steps_per_save": 20, "learning_rate": 1e-5}
    job = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, extra_body={"mlx": knobs})

    def figures() -> list[dict[str, Any]]:
        events = client.fine_tuning.jobs.list_events(job.id, limit=100)
        return [event.data for event in events if event.type == "metrics" and "train_loss" in (event.data or {})]

    eventually(lambda: len(figures()) >= 10, seconds=PATIENCE, what="fifty steps")
    stack.kill("gpu")
    done = eventually(
        lambda: (now := client.fine_tuning.jobs.retrieve(job.id)).status in {"succeeded", "failed"} and now,
        seconds=PATIENCE,
        what="the end of the run",
    )

    assert done.status == "succeeded", done.error
    messages = [event.message for event in client.fine_tuning.jobs.list_events(job.id, limit=20)]
    messages += [event.message for event in client.fine_tuning.jobs.list_events(job.id)]
    resumed = [message for message in messages if message.startswith("Going on from step")]
    assert resumed and int(resumed[0].removeprefix("Going on from step ").rstrip(".")) >= 20
    table = client.files.content(done.result_files[0]).text.splitlines()
    assert [int(row.split(",")[0]) for row in table[1:]] == list(range(5, 401, 5))
