"""Legacy completions on the real platform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.sse import chunks
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

PATH = "/v1/completions"
Post = Callable[..., httpx.Response]


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "The river was", "max_tokens": 3, "temperature": 0, **more}


def test_echo_comes_first_in_both_modes(post: Post) -> None:
    whole = post(PATH, ask(echo=True)).json()["choices"][0]["text"]
    streamed = "".join(c["choices"][0]["text"] for c in chunks(post(PATH, ask(echo=True, stream=True)).text))
    assert whole.startswith("The river was")
    assert streamed == whole


def test_several_prompts_and_choices_in_prompt_major_order(post: Post) -> None:
    single = [post(PATH, ask(prompt=prompt)).json() for prompt in ("2+2=", "The sky is")]
    both = post(PATH, ask(prompt=["2+2=", "The sky is"], n=2)).json()
    texts = [choice["text"] for choice in both["choices"]]
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert texts == [single[0]["choices"][0]["text"]] * 2 + [single[1]["choices"][0]["text"]] * 2
    assert both["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in single)
    assert both["usage"]["completion_tokens"] == 2 * sum(one["usage"]["completion_tokens"] for one in single)


def test_token_prompts(post: Post) -> None:
    assert post(PATH, ask(prompt=[5, 6, 7])).json()["usage"]["prompt_tokens"] == 3
    assert len(post(PATH, ask(prompt=[[5, 6], [7]])).json()["choices"]) == 2


def test_the_sdk_reads_the_usage_chunk(stack: Stack) -> None:
    stream = stack.openai().completions.create(**ask(stream=True, n=2, stream_options={"include_usage": True}))
    last = list(stream)[-1]
    assert last.choices == []
    assert last.usage.completion_tokens == 6


@pytest.mark.parametrize("count", [0, 3, 5])
def test_logprobs_are_four_arrays_of_one_length(post: Post, count: int) -> None:
    logprobs = post(PATH, ask(logprobs=count)).json()["choices"][0]["logprobs"]
    assert {len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {3}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [10**9]}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": "3"}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"n": 0}, "n"),
        ({"echo": True, "logprobs": 1}, "echo"),
    ],
)
def test_bad_fields_are_named(refused: Callable[..., dict[str, Any]], change: dict[str, Any], param: str) -> None:
    refused(PATH, {key: value for key, value in {**ask(), **change}.items() if value is not None}, 400, param)
