"""What goes into a batch and what comes out, line by line; and the forecast. Pure."""

from __future__ import annotations

import io
import json

import pytest

from mlxplatform.batches import lines
from mlxplatform.batches.forecast import SLICE_S, Forecaster
from mlxplatform.batches.lines import BatchLineIn, Keys, Problem

CHAT = "/v1/chat/completions"


def line(**changes: object) -> bytes:
    whole = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"messages": []}, **changes}
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def read(content: bytes) -> list[BatchLineIn | Problem]:
    return list(lines.read(io.BytesIO(content), CHAT, "openai"))


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        ({"method": ...}, "missing_required_parameter", "method"),
        ({"url": ...}, "missing_required_parameter", "url"),
        ({"body": ...}, "missing_required_parameter", "body"),
        ({"custom_id": ...}, "missing_required_parameter", "custom_id"),
        ({"custom_id": 5}, "invalid_request", "custom_id"),
        ({"custom_id": ""}, "invalid_request", "custom_id"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"body": []}, "invalid_request", "body"),
    ],
)
def test_each_mistake_is_named_with_its_line(bad: dict[str, object], code: str, param: str) -> None:
    good, problem = read(line() + b"\n\n" + line(**bad))
    assert isinstance(good, BatchLineIn)
    assert isinstance(problem, Problem)
    assert (problem.code, problem.param, problem.line) == (code, param, 3)


@pytest.mark.parametrize("content", [
    b"\xef\xbb\xbf" + line(custom_id="a") + b"\n" + line(custom_id="b") + b"\n",
    line(custom_id="a") + b"\r\n" + line(custom_id="b") + b"\r\n",
    b"\n  \n" + line(custom_id="a") + b"\n\n\t\n" + line(custom_id="b") + b"\n",
    line(custom_id="a") + b"\n" + line(custom_id="b"),
])  # fmt: skip
def test_line_ends_marks_and_blanks_do_not_matter(content: bytes) -> None:
    found = read(content)
    assert [one.custom_id for one in found if isinstance(one, BatchLineIn)] == ["a", "b"]
    assert len(found) == 2


def test_an_array_is_one_clear_problem() -> None:
    (problem,) = read(b"[\n" + line() + b"\n]")
    assert isinstance(problem, Problem)
    assert "array" in problem.message


def test_output_lines_survive_every_reader() -> None:
    text = "a\u2028b\u2029c\u0085d\x00e\nf\r"
    written = lines.answered("openai", "batch_1", BatchLineIn(7, "k\u2028", {}), {"text": text})
    assert len(written.splitlines()) == 1
    parsed = json.loads(written)
    assert (parsed["custom_id"], parsed["response"]["body"]["text"], parsed["error"]) == ("k\u2028", text, None)
    assert parsed["response"]["status_code"] == 200
    assert parsed["id"] == lines.request_id("batch_1", 7) != lines.request_id("batch_1", 8)


def test_unfinished_lines_say_why_in_either_dialect() -> None:
    one = BatchLineIn(1, "k", {})
    for outcome in ("cancelled", "expired"):
        openai_line = json.loads(lines.unfinished("openai", "b", one, outcome))
        assert (openai_line["response"], openai_line["error"]["code"]) == (None, f"batch_{outcome}")
    assert json.loads(lines.unfinished("anthropic", "b", one, "cancelled"))["result"] == {"type": "canceled"}
    assert json.loads(lines.unfinished("anthropic", "b", one, "expired"))["result"] == {"type": "expired"}


def test_keys_are_seen_once() -> None:
    keys = Keys()
    assert [keys.is_new(key) for key in ("a", "b", "a", "A")] == [True, True, False, True]


def test_the_forecast_says_nothing_early_and_brackets_a_steady_rate() -> None:
    forecaster = Forecaster(0.0, 0)
    assert forecaster.estimate(1.0, 100) is None
    for step in range(1, 11):
        forecaster.note(step * SLICE_S, step * 20 + step % 2)
    said = forecaster.estimate(100.0, 200)
    assert said is not None
    assert said["earliest"] <= said["done_at"] <= said["latest"]
    assert said["done_at"] == pytest.approx(200, abs=5)
