"""Decisions, embeddings and Ollama on the real platform, and what is refused in words."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.conftest import HELLO
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

Post = Callable[..., httpx.Response]
QUESTIONS = [
    {"type": "predicate", "name": "blue", "instructions": "Is the sky blue?"},
    {"type": "choice", "instructions": "Colour?", "choices": [{"value": "red"}, {"value": "true"}, {"value": True}]},
    {"type": "score", "instructions": "How blue?", "levels": [{"label": "no"}, {"label": "some"}, {"label": "very"}]},
]


def test_decisions_through_the_sdk(stack: Stack) -> None:
    decision = stack.openai().decisions.create(model="tiny", input="The sky is blue.", questions=QUESTIONS)
    predicate, choice, score = decision.answers
    assert predicate.name == "blue" and 0 <= predicate.probability <= 1
    assert sum(p.probability for p in choice.probabilities) == pytest.approx(1)
    assert [p.value for p in choice.probabilities] == ["red", "true", True]
    assert 0 <= score.score <= 2 and 0 <= score.confidence <= 1
    assert decision.usage.output_tokens == 0
    again = stack.openai().decisions.create(model="tiny", input="The sky is blue.", questions=QUESTIONS)
    assert again.answers[1].choice == choice.choice


def test_the_system_one_wire(post: Post) -> None:
    questions = {
        "z": {"type": "noul", "instructions": "ok?"},
        "a": {"type": "choice", "instructions": "which", "criteria": {"x": None, "y": "why"}},
        "s": {"type": "score", "instructions": "level", "criteria": ["low", "mid", "high"]},
        "one": {"type": "choice", "instructions": "which", "criteria": ["only"]},
    }
    body = {"model": "any", "state": {"text": "hello"}, "questions": questions}
    for path in ("/v1/systemone", "/v1/decisions"):
        answers = post(path, body).json()["answers"]
        assert list(answers) == list(questions)
        assert set(answers["z"]) == {"type", "noul"}
        assert answers["s"]["legend"] == {"0": "low", "1": "mid", "2": "high"}
        assert sum(answers["a"]["probabilities"].values()) == pytest.approx(1)
        assert answers["one"]["choice"] == "only"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"state": "x"},
        {"state": "", "questions": {"a": {"type": "noul", "instructions": "x"}}},
        {"state": "x", "questions": {}},
        {"state": "x", "questions": {"a": {"type": "box", "instructions": "x"}}},
        {"state": "x", "questions": {"a": {"type": "noul", "instructions": " "}}},
        {"state": "x", "questions": {"a": {"type": "score", "instructions": "x", "criteria": ["one"]}}},
        {"state": [{"type": "image_url", "image_url": {"url": "x"}}], "questions": {"a": {"type": "noul", "instructions": "x"}}},
    ],
)
def test_what_is_wrong_with_a_state_is_422_there_and_400_here(post: Post, body: dict[str, Any]) -> None:
    assert post("/v1/systemone", body).status_code == 422
    assert post("/v1/decisions", body).status_code == 400


def test_embeddings_in_both_encodings(stack: Stack, post: Post) -> None:
    body = {"model": "all-minilm-l6-v2", "input": ["a", "b"]}
    as_float = post("/v1/embeddings", {**body, "encoding_format": "float"}).json()
    as_base64 = post("/v1/embeddings", {**body, "encoding_format": "base64"}).json()
    assert [item["index"] for item in as_float["data"]] == [0, 1]
    for number, packed in zip(as_float["data"], as_base64["data"], strict=True):
        raw = base64.b64decode(packed["embedding"])
        assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(number["embedding"], abs=1e-6)
    assert as_float["usage"]["prompt_tokens"] > 0
    from_sdk = stack.openai().embeddings.create(**body)
    assert from_sdk.data[1].embedding == pytest.approx(as_float["data"][1]["embedding"], abs=1e-6)


@pytest.mark.parametrize("value", ["", [], [""], ["a", ""], ["a", 1], None, ["x"] * 2049, 5, [[]]])
def test_inputs_that_are_none(post: Post, value: Any) -> None:
    response = post("/v1/embeddings", {"model": "all-minilm-l6-v2", "input": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("input")


def test_models_of_the_wrong_kind(post: Post) -> None:
    assert post("/v1/embeddings", {"model": "tiny", "input": "x"}).status_code == 400
    assert post("/v1/chat/completions", {"model": "all-minilm-l6-v2", "messages": HELLO}).status_code == 400


def test_ollama_streams_lines(post: Post) -> None:
    body = {"model": "tiny:latest", "messages": HELLO, "options": {"temperature": 0, "num_predict": 12, "num_ctx": 4096}}
    response = post("/api/chat", body)
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    text = "".join(line["message"]["content"] for line in lines)
    assert "Paris" in text
    whole = post("/api/chat", {**body, "stream": False}).json()
    assert whole["message"]["content"] == text
    assert whole["eval_count"] == lines[-1]["eval_count"]
    assert "options.num_ctx" in response.headers["x-mlxplatform-ignored"]


def test_ollama_generates_embeds_and_lists(stack: Stack, post: Post) -> None:
    prompt = HELLO[0]["content"]
    answer = post("/api/generate", {"model": "tiny", "prompt": prompt, "stream": False, "options": {"temperature": 0}}).json()
    assert "Paris" in answer["response"]
    assert len(post("/api/embed", {"model": "all-minilm-l6-v2", "input": ["a", "b"]}).json()["embeddings"]) == 2
    assert post("/api/embed", {"model": "all-minilm-l6-v2", "input": []}).json()["embeddings"] == []
    assert "tiny" in [model["name"] for model in stack.http.get("/api/tags").json()["models"]]
    assert "completion" in post("/api/show", {"model": "tiny"}).json()["capabilities"]
    assert stack.http.get("/api/version").json()["version"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"model": "tiny", "messages": HELLO, "options": {"top_k": -1}}),
        ("/api/chat", {"model": "tiny", "messages": [{"role": "robot", "content": "x"}]}),
        ("/api/chat", {"messages": HELLO}),
        ("/api/generate", {"model": "tiny", "prompt": "x", "suffix": "y"}),
        ("/api/generate", {"model": "tiny", "prompt": "x", "images": ["aGk="]}),
    ],
)
def test_ollama_refusals(post: Post, path: str, body: dict[str, Any]) -> None:
    response = post(path, body)
    assert response.status_code == 400
    assert isinstance(response.json()["error"], str)


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/moderations", 501), ("/v1/images/generations", 501), ("/v1/audio/speech", 501)]
)
def test_what_is_not_here_is_refused_in_words(post: Post, path: str, status: int) -> None:
    response = post(path, {"input": "x"})
    assert response.status_code == status
    assert response.json()["error"]["code"] == "unsupported_execution"


def test_reranking_puts_the_same_words_first(post: Post) -> None:
    documents = ["bananas are yellow", {"text": "the capital of France is Paris"}, "engines need oil"]
    body = {
        "model": "all-minilm-l6-v2",
        "query": "capital of France",
        "documents": documents,
        "top_n": 2,
        "return_documents": True,
    }
    answer = post("/v1/rerank", body).json()
    assert answer["results"][0]["index"] == 1
    assert len(answer["results"]) == 2
    assert answer["results"][0]["document"] == {"text": "the capital of France is Paris"}
    assert answer["results"][0]["relevance_score"] >= answer["results"][1]["relevance_score"]


@pytest.mark.parametrize("change", [{"documents": []}, {"documents": [""]}, {"documents": [5]}, {"query": ""}, {"top_n": 0}])
def test_reranking_refusals(post: Post, change: dict[str, Any]) -> None:
    body = {"model": "all-minilm-l6-v2", "query": "q", "documents": ["a"], **change}
    assert post("/v1/rerank", body).status_code == 400


def test_the_schema_describes_every_protocol(stack: Stack) -> None:
    paths = stack.http.get("/api/schema").json()["paths"]
    assert {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/decisions", "/api/chat", "/api/keys"} <= set(paths)
    page = stack.http.get("/api/docs").text
    assert "max_completion_tokens" in page and "<script" not in page
