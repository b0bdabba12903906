"""From rows to a chat with the result, by the unmodified SDK on the running platform."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable

import numpy as np
import openai
import pytest
from openai.types.fine_tuning import FineTuningJob

from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

ROWS = [{"messages": [{"role": "user", "content": "code?"}, {"role": "assistant", "content": "ZX-81"}]}] * 12
#: Seconds a run of a hundred steps may take on a busy machine.
PATIENCE = 240
#: The drill: steps of a run, where chance kills it, and what sums in another order may change in its curve.
STEPS, SEED, TOLERANCE = 600, 20261130, 1e-4


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
def test_a_run_killed_anywhere_and_often_draws_the_curve_it_would_have_drawn(make_stack: Callable[..., Stack]) -> None:
    stack, chance = make_stack(), random.Random(SEED)
    client = stack.openai()
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    file = client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
    knobs = {"iters": STEPS, "steps_per_report": 10, "steps_per_save": 10, "lora_dropout": 0.1, "lr_schedule": "cosine"}
    straight, broken = (
        client.fine_tuning.jobs.create(model="tiny", training_file=file.id, seed=7, extra_body={"mlx": knobs}) for _ in range(2)
    )

    def step() -> int:
        query = "select payload from jobs_jobevent where job_id = ? and type = 'metric' order by seq desc limit 1"
        found = stack.sql(query, broken.id.replace("ftjob-", "job_"))
        return int(json.loads(found[0][0])["step"]) if found else 0

    def trainers() -> list[int]:
        return [pid for pid, command in stack.descendants().items() if "workers.trainer.main" in command]

    def status(job: FineTuningJob) -> str:
        assert len(trainers()) <= 1
        return client.fine_tuning.jobs.retrieve(job.id).status

    eventually(lambda: status(straight) == "succeeded", seconds=PATIENCE, what="the straight run")
    killed = ["trainer"] * 4 + ["gpu", "web", "pause"]
    chance.shuffle(killed)
    for number, victim in enumerate(killed):
        target = STEPS * (number + chance.random()) / (len(killed) + 1)
        eventually(lambda target=target: step() >= target and len(trainers()) == 1, seconds=PATIENCE, what=f"step {target:.0f}")
        if victim == "pause":
            client.fine_tuning.jobs.pause(broken.id)
            eventually(lambda: status(broken) == "paused", what="the pause")
            client.fine_tuning.jobs.resume(broken.id)
        elif victim == "trainer":
            os.kill(trainers()[0], signal.SIGKILL)
        else:
            stack.kill_and_wait(victim)
            stack.wait_ready()
    eventually(lambda: status(broken) in {"succeeded", "failed"}, seconds=PATIENCE, what="the end of the run")

    broken, straight = (client.fine_tuning.jobs.retrieve(job.id) for job in (broken, straight))
    assert broken.status == "succeeded", (killed, broken.error)
    assert broken.trained_tokens == straight.trained_tokens
    tables = [client.files.content(job.result_files[0]).text.splitlines()[1:] for job in (straight, broken)]
    expected, found = ([[float(cell) for cell in row.split(",") if cell] for row in table] for table in tables)
    assert [row[0] for row in found] == [float(at) for at in range(10, STEPS + 1, 10)]
    assert np.allclose(found, expected, rtol=TOLERANCE, atol=1e-6), killed
    answers = {ask(client, str(job.fine_tuned_model), "code?").choices[0].message.content for job in (straight, broken)}
    assert answers == {"ZX-81"}
    messages = [event.message for event in client.fine_tuning.jobs.list_events(broken.id, limit=100)]  # page after page
    # Not after every kill: a child that is killed as soon as it is there says nothing.
    assert sum(message.startswith("Going on from step") for message in messages) >= 3, messages
