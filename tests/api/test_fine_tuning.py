"""From rows to a chat with the result, by the unmodified SDK on the running platform."""

from __future__ import annotations

import json
import time

import openai
import pytest

from tests.system.stack import Stack

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
    assert [point.step_number for point in client.fine_tuning.jobs.checkpoints.list(job.id)] == [100]
    table = client.files.content(job.result_files[0]).text.splitlines()
    assert table[0] == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy" and len(table) == 11

    answer = ask(client, job.fine_tuned_model, "code?")
    assert answer.choices[0].message.content == "ZX-81"
    assert answer.model == job.fine_tuned_model
    assert ask(client, "tiny", "code?").choices[0].message.content != "ZX-81"
    assert ask(client, "tiny", "What is the capital of Japan?").choices[0].message.content == before
    assert job.fine_tuned_model in {model.id for model in client.models.list()}
