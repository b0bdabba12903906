"""Batches on the running platform through the unmodified SDKs: every case of good, bad and interrupted input."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

CHAT = "/v1/chat/completions"
ENDED = {"completed", "failed", "expired", "cancelled"}


@pytest.fixture
def sdk(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.base_url}/v1", api_key="any", max_retries=0)


def body(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


def line(custom_id: Any, url: str = CHAT, **more: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body(), **more}


def start(sdk: openai.OpenAI, lines: list[Any] | bytes, endpoint: str = CHAT, **options: Any) -> Any:
    raw = lines if isinstance(lines, bytes) else "".join(json.dumps(one) + "\n" for one in lines).encode()
    file = sdk.files.create(file=("in.jsonl", raw), purpose="batch")
    return sdk.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **options)  # type: ignore[arg-type]


def ended(sdk: openai.OpenAI, batch: Any) -> Any:
    def look() -> Any:
        now = sdk.batches.retrieve(batch.id)
        time.sleep(0.2)  # every look costs the two cores that work on the batch
        return now if now.status in ENDED else None

    return eventually(look, seconds=90, what=f"the end of {batch.id}")


def content(sdk: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    raw = sdk.files.content(file_id).content
    assert raw.endswith(b"\n")
    assert len(raw.decode().splitlines()) == raw.count(b"\n")
    return [json.loads(one) for one in raw.split(b"\n")[:-1]]


def everything(sdk: openai.OpenAI, batch: Any) -> dict[str, dict[str, Any]]:
    """Every line of both files by custom_id; each exactly once."""
    found = content(sdk, batch.output_file_id) + content(sdk, batch.error_file_id)
    assert max(Counter(one["custom_id"] for one in found).values(), default=1) == 1
    return {one["custom_id"]: one for one in found}


def test_a_batch_from_upload_to_results(sdk: openai.OpenAI) -> None:
    batch = start(sdk, [line(f"r{n}") for n in range(5)], metadata={"run": "nightly"})
    assert (batch.object, batch.status, batch.endpoint, batch.metadata) == ("batch", "validating", CHAT, {"run": "nightly"})
    done = ended(sdk, batch)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (5, 5, 0)
    assert done.error_file_id is None
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    results = everything(sdk, done)
    assert set(results) == {f"r{n}" for n in range(5)}
    answer = results["r0"]["response"]
    assert (answer["status_code"], answer["body"]["object"], results["r0"]["error"]) == (200, "chat.completion", None)
    assert done.usage.output_tokens == sum(one["response"]["body"]["usage"]["completion_tokens"] for one in results.values())
    output = sdk.files.retrieve(done.output_file_id)
    assert (output.purpose, output.status, output.filename) == ("batch_output", "processed", f"{batch.id}_output.jsonl")


def shape(value: Any) -> Any:
    """Names and types of an answer: what a program relies on."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else type(value)


@pytest.mark.parametrize(("endpoint", "request_body", "kind"), [
    ("/v1/completions", {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 3}, "text_completion"),
    ("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 3}, "response"),
    (CHAT, body(n=2), "chat.completion"),
    ("/v1/embeddings", {"model": "all-minilm-l6-v2", "input": ["a", "b"]}, "list"),
    ("/v1/embeddings", {"model": "all-minilm-l6-v2", "input": ["a", "b"], "encoding_format": "base64"}, "list"),
])  # fmt: skip
def test_other_endpoints_and_several_choices(sdk: openai.OpenAI, endpoint: str, request_body: dict[str, Any], kind: str) -> None:
    done = ended(sdk, start(sdk, [line("a", endpoint, body=request_body)], endpoint))
    answer = everything(sdk, done)["a"]["response"]
    assert (answer["status_code"], answer["body"]["object"]) == (200, kind), answer
    if kind != "response":
        assert len(answer["body"]["data" if kind == "list" else "choices"]) == 2
    alone = httpx.post(f"{str(sdk.base_url).rstrip('/')}{endpoint.removeprefix('/v1')}", json=request_body, timeout=60).json()
    assert shape(answer["body"]) == shape(alone)


def test_duplicate_ids_fail_at_validation_and_run_nothing(sdk: openai.OpenAI) -> None:
    done = ended(sdk, start(sdk, [line("r1"), line("r2"), line("r1")]))
    assert done.status == "failed"
    (error,) = done.errors.data
    assert (error.code, error.line, error.param) == ("duplicate_custom_id", 3, "custom_id")
    assert (done.output_file_id, done.error_file_id, done.request_counts.completed) == (None, None, 0)


def test_bad_lines_are_all_named(sdk: openai.OpenAI) -> None:
    lines = [
        line("a"),
        {"custom_id": "b", "params": {}},
        line("c", "/v1/embeddings"),
        line("d", method="GET"),
        line(None),
        line(6),
    ]
    done = ended(sdk, start(sdk, lines))
    assert done.status == "failed"
    assert [error.line for error in done.errors.data] == [2, 3, 4, 5, 6]
    assert [error.param for error in done.errors.data] == ["method", "url", "method", "custom_id", "custom_id"]


@pytest.mark.parametrize("raw", [b"\n \n", b"not json\n", b"[]\n", b'"text"\n', b"\xff\xfe\n"])
def test_files_that_are_no_batch_fail_with_a_reason(sdk: openai.OpenAI, raw: bytes) -> None:
    done = ended(sdk, start(sdk, raw))
    assert done.status == "failed"
    assert done.errors.data[0].message


def test_lines_that_fail_while_running_are_in_the_error_file(sdk: openai.OpenAI) -> None:
    bad = [line("x", body=body(max_tokens=-5)), line("y", body=body(model="no-such-model")), line("z", body=body(stream=True))]
    done = ended(sdk, start(sdk, [line("a"), bad[0], line("b"), bad[1], bad[2], line("c")]))
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (6, 3, 3)
    assert {one["custom_id"] for one in content(sdk, done.output_file_id)} == {"a", "b", "c"}
    errors = {one["custom_id"]: one["response"] for one in content(sdk, done.error_file_id)}
    assert {key: answer["status_code"] for key, answer in errors.items()} == {"x": 400, "y": 404, "z": 400}
    assert errors["x"]["body"]["error"]["param"] == "max_tokens"
    assert errors["y"]["body"]["error"]["code"] == "model_not_found"


HOSTILE: list[Any] = [
    {"messages": {"role": "user"}},
    {"messages": [None]},
    {"messages": [{"role": "user", "content": {"type": "text"}}]},
    {"messages": [{"role": "wizard", "content": "Hi"}]},
    {"model": ["tiny"]},
    {"model": "../../etc/passwd"},
    {"model": "ft:tiny:local:none:0"},
    {"max_tokens": 1e300},
    {"max_tokens": "many"},
    {"temperature": "hot"},
    {"stop": [1, 2]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
    {"tools": [{"type": "function"}]},
    {"n": 0},
    {"logit_bias": {"x": 500}},
    {"logit_bias": {"99999": 1}},
    {"chat_template_kwargs": {"x": 2**70}},
    {"stream": True},
]


def test_hostile_bodies_cost_only_their_own_line(sdk: openai.OpenAI) -> None:
    lines = [line(f"bad{number}", body={**body(), **change}) for number, change in enumerate(HOSTILE)]
    lines.insert(7, line("good", body=body(logit_bias={"5": 1})))
    done = ended(sdk, start(sdk, lines))
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 1, len(HOSTILE))
    raw = sdk.files.content(done.error_file_id).content
    for one in map(json.loads, raw.splitlines()):
        said = one["response"]
        assert 400 <= said["status_code"] < 500, one
        assert said["body"]["error"]["message"] and "Traceback" not in json.dumps(said), one


def test_a_batch_whose_lines_all_fail_is_completed_without_output(sdk: openai.OpenAI) -> None:
    done = ended(sdk, start(sdk, [line(f"r{n}", body=body() | {"messages": []}) for n in range(3)]))
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 0, 3)
    assert done.output_file_id is None
    assert len(content(sdk, done.error_file_id)) == 3


def test_marks_line_ends_and_blank_lines_do_not_matter(sdk: openai.OpenAI) -> None:
    one, two = (json.dumps(line(key, body=body(temperature=0))).encode() for key in "ab")
    variants = [
        b"\xef\xbb\xbf" + one + b"\n" + two + b"\n",
        one + b"\r\n" + two + b"\r\n",
        b"\n  \n" + one + b"\n\n" + two + b"\n\n",
        one + b"\n" + two,
    ]
    finished = [ended(sdk, batch) for batch in [start(sdk, raw) for raw in variants]]
    assert [done.request_counts.total for done in finished] == [2, 2, 2, 2]
    texts = [
        {key: one["response"]["body"]["choices"][0]["message"]["content"] for key, one in everything(sdk, done).items()}
        for done in finished
    ]
    assert texts == [texts[0]] * 4


def test_cancel_keeps_what_is_done_and_names_the_rest(sdk: openai.OpenAI) -> None:
    batch = start(sdk, [line(f"r{n}", body=body(max_tokens=60)) for n in range(300)])
    eventually(lambda: sdk.batches.retrieve(batch.id).request_counts.completed > 0, seconds=60, what="a finished line")
    running = sdk.batches.retrieve(batch.id)
    early = content(sdk, running.output_file_id)
    assert early
    cancelled = sdk.batches.cancel(batch.id)
    assert cancelled.status in {"cancelling", "cancelled"}
    assert sdk.batches.cancel(batch.id).status in {"cancelling", "cancelled"}
    done = ended(sdk, batch)
    assert (done.status, done.request_counts.total) == ("cancelled", 300)
    assert done.request_counts.completed + done.request_counts.failed == 300
    final = content(sdk, done.output_file_id)
    assert final[: len(early)] == early
    assert len(everything(sdk, done)) == 300
    rest = content(sdk, done.error_file_id)
    assert {one["error"]["code"] for one in rest} == {"batch_cancelled"}


@pytest.mark.parametrize(("change", "param"), [
    ({"endpoint": "/v1/images/generations"}, "endpoint"),
    ({"endpoint": None}, "endpoint"),
    ({"completion_window": "1h"}, "completion_window"),
    ({"completion_window": "soon"}, "completion_window"),
    ({"input_file_id": 5}, "input_file_id"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after[seconds]"),
    ({"colour": "red"}, "colour"),
])  # fmt: skip
def test_a_wrong_request_makes_no_batch(sdk: openai.OpenAI, change: dict[str, Any], param: str) -> None:
    file = sdk.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    whole = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **change}
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.post("/batches", body=whole, cast_to=object)
    assert refused.value.param == param


def test_unknown_files_and_batches_are_404_and_other_purposes_400(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")  # type: ignore[arg-type]
    assert missing.value.param == "input_file_id"
    other = sdk.files.create(file=("in.jsonl", b"{}\n"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError) as wrong:
        sdk.batches.create(input_file_id=other.id, endpoint=CHAT, completion_window="24h")  # type: ignore[arg-type]
    assert wrong.value.param == "input_file_id"
    for call in (sdk.batches.retrieve, sdk.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call("batch_none")


def test_auto_paging_and_idempotency(sdk: openai.OpenAI) -> None:
    made = [start(sdk, [line("a")]).id for _ in range(3)]
    file = sdk.files.create(file=("in.jsonl", json.dumps(line("a")).encode()), purpose="batch")
    options = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    first = sdk.batches.create(**options, extra_headers={"Idempotency-Key": "once"})  # type: ignore[arg-type]
    assert sdk.batches.create(**options, extra_headers={"Idempotency-Key": "once"}).id == first.id  # type: ignore[arg-type]
    seen = [batch.id for batch in sdk.batches.list(limit=2)]
    assert seen[:4] == [first.id, *made[::-1]]
    assert len(set(seen)) == len(seen)


def test_message_batches_with_the_anthropic_sdk(stack: Stack) -> None:
    sdk = anthropic.Anthropic(base_url=stack.base_url, api_key="any", max_retries=0)
    good = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    bad = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    batch = sdk.messages.batches.create(requests=[{"custom_id": "a", "params": good}, {"custom_id": "b", "params": bad}])  # type: ignore[list-item,typeddict-item]
    assert (batch.type, batch.processing_status, batch.request_counts.processing) == ("message_batch", "in_progress", 2)
    assert batch.results_url is None

    def look() -> Any:
        now = sdk.messages.batches.retrieve(batch.id)
        return now if now.processing_status == "ended" else None

    done = eventually(look, seconds=90, what="the end")
    assert (done.request_counts.succeeded, done.request_counts.errored, done.request_counts.processing) == (1, 1, 0)
    results = {one.custom_id: one.result for one in sdk.messages.batches.results(batch.id)}
    assert results["a"].type == "succeeded"
    assert results["a"].message.type == "message"
    assert results["b"].type == "errored"
    assert results["b"].error.error.type == "invalid_request_error"
    assert [one.id for one in sdk.messages.batches.list(limit=1)][0] == batch.id
    assert sdk.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        sdk.messages.batches.retrieve(batch.id)


def test_message_batches_page_both_ways_and_refuse_bad_requests(stack: Stack) -> None:
    sdk = anthropic.Anthropic(base_url=stack.base_url, api_key="any", max_retries=0)
    params = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
    made = [sdk.messages.batches.create(requests=[{"custom_id": "a", "params": params}]).id for _ in range(4)]  # type: ignore[list-item,typeddict-item]
    newest_first = made[::-1]
    keyed = {"requests": [{"custom_id": "a", "params": params}], "extra_headers": {"Idempotency-Key": "message batch"}}
    again = [sdk.messages.batches.create(**keyed).id for _ in range(2)]  # type: ignore[arg-type]
    assert again[0] == again[1]
    with pytest.raises(anthropic.BadRequestError):
        sdk.messages.batches.create(**{**keyed, "requests": [{"custom_id": "b", "params": params}]})
    newest_first.insert(0, again[0])
    assert [one.id for one in sdk.messages.batches.list(limit=2)][:5] == newest_first
    page = sdk.messages.batches.list(limit=2, before_id=newest_first[3])
    assert [one.id for one in page.data] == newest_first[1:3]
    assert page.has_more
    for requests in (
        [],
        [{"custom_id": "a b", "params": params}],
        [{"custom_id": "a\n", "params": params}],
        [{"custom_id": "a", "params": params}] * 2,
        [{"custom_id": "a"}],
    ):
        with pytest.raises(anthropic.BadRequestError):
            sdk.messages.batches.create(requests=requests)  # type: ignore[arg-type]
    with pytest.raises(anthropic.BadRequestError):
        busy = sdk.messages.batches.create(
            requests=[{"custom_id": str(n), "params": {**params, "max_tokens": 60}} for n in range(50)]
        )  # type: ignore[list-item,typeddict-item]
        sdk.messages.batches.delete(busy.id)
    cancelled = sdk.messages.batches.cancel(busy.id)
    assert cancelled.cancel_initiated_at is not None
    eventually(lambda: sdk.messages.batches.retrieve(busy.id).processing_status == "ended", seconds=60, what="the cancel")
    kinds = Counter(one.result.type for one in sdk.messages.batches.results(busy.id))
    assert sum(kinds.values()) == 50
    assert set(kinds) <= {"succeeded", "canceled"}
