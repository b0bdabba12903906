"""Presets, pins and defaults: what a client says wins, what it leaves open is the preset's, and wrong ones are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from mlxplatform.inference.contract import InferenceRequest, Message, Sampling
from mlxplatform.library import choices
from mlxplatform.library.models import ModelChoice
from mlxplatform.library.presets import Choices, with_preset
from tests.fixtures import tiny_model
from workers.prepare import resolve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(autouse=True)
def models() -> Iterator[None]:
    for name in ("one", "two"):
        tiny_model.install(settings.HOME, name)
    yield
    shutil.rmtree(settings.HOME / "models")


def ask(**fields: Any) -> InferenceRequest:
    return InferenceRequest(id="r", model="one", messages=[Message("user", "hi")], **fields)


@given(
    said=st.fixed_dictionaries(
        {}, optional={"temperature": st.floats(0, 2), "top_k": st.integers(0, 9), "min_p": st.floats(0, 1)}
    ),
    preset=st.fixed_dictionaries(
        {}, optional={"temperature": st.floats(0, 2), "top_k": st.integers(0, 9), "top_p": st.floats(0, 1)}
    ),
)
def test_the_request_comes_first_then_the_preset_then_the_model_then_ours(said: dict[str, Any], preset: dict[str, Any]) -> None:
    model = {"temperature": 0.3, "top_k": 50}
    ours = {"temperature": resolve.DEFAULT_TEMPERATURE, "top_k": 0, "top_p": 0.0, "min_p": 0.0}

    sampling = resolve.sampling(with_preset(ask(sampling=Sampling(**said)), preset), model)

    for name, fallback in ours.items():
        assert getattr(sampling, name) == said.get(name, preset.get(name, model.get(name, fallback)))


def test_a_preset_fills_the_answers_length_and_thinking_only_where_they_are_open() -> None:
    preset = {"max_tokens": 7, "thinking": False}

    filled = with_preset(ask(), preset)
    assert (filled.max_tokens, filled.template_kwargs) == (7, {"enable_thinking": False})
    assert resolve.thinking(filled) is False
    assert with_preset(ask(max_tokens=9), preset).max_tokens == 9
    assert with_preset(ask(reasoning_effort="high"), preset).template_kwargs == {}
    assert with_preset(ask(template_kwargs={"enable_thinking": True}), preset).template_kwargs == {"enable_thinking": True}
    assert with_preset(ask(sampling=Sampling(temperature=0.0)), {"temperature": 1.5}).sampling.temperature == 0.0
    unchanged = ask()
    assert with_preset(unchanged, {}) is unchanged


def test_a_fine_tuned_names_own_values_come_before_its_bases() -> None:
    chosen = Choices({"base": {"temperature": 0.1, "top_k": 5}, "ft:base:local::1": {"temperature": 0.9}})

    assert chosen.preset_of("ft:base:local::1", "base") == {"temperature": 0.9, "top_k": 5}
    assert chosen.preset_of("base", "base") == {"temperature": 0.1, "top_k": 5}
    assert chosen.preset_of("other") == {}


def call(method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    answer = getattr(Client(), method)(path, json.dumps(body) if body is not None else None, content_type="application/json")
    return answer.status_code, answer.json()


def test_a_preset_is_kept_shown_and_forgotten() -> None:
    assert call("put", "/api/library/one/preset", {"temperature": 0.2, "top_k": None, "context": 512})[0] == 200
    assert call("get", "/api/library/one/preset")[1]["preset"] == {"temperature": 0.2, "context": 512}
    shown = {model["id"]: model for model in call("get", "/library")[1]["models"]}
    assert shown["one"]["preset"] == {"temperature": 0.2, "context": 512} and shown["two"]["preset"] is None
    assert call("put", "/api/library/one/preset", {"top_p": 0.5})[1]["preset"] == {"top_p": 0.5}  # replaced, not merged
    assert call("delete", "/api/library/one/preset")[1]["preset"] == {}
    assert {field["name"] for field in call("get", "/api/presets/fields")[1]["fields"]} >= {"temperature", "context", "thinking"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"context": 8}, "context"),
        ({"context": 2049}, "context"),
        ({"thinking": "yes"}, "thinking"),
        ({"seed": 1}, "seed"),
        ({"temperature": True}, "temperature"),
    ],
)
def test_a_wrong_preset_names_its_field_and_changes_nothing(body: dict[str, Any], field: str) -> None:
    call("put", "/api/library/one/preset", {"temperature": 0.2})

    status, answer = call("put", "/api/library/one/preset", body)

    assert (status, answer["field"]) == (400, field)
    assert choices.of("one").preset == {"temperature": 0.2}


@pytest.mark.parametrize("name", ["nothing", "..%2F..%2Fetc", "ft:one:local:x:12345678"])
def test_what_is_not_here_cannot_be_chosen(name: str) -> None:
    for method, path in (("put", "preset"), ("post", "default")):
        status, answer = call(method, f"/api/library/{name}/{path}", {})
        assert status in {400, 404} and answer["ok"] is False
    assert ModelChoice.objects.count() == 0


def test_one_model_of_a_kind_is_the_default_and_the_last_choice_counts() -> None:
    assert call("post", "/api/library/one/default")[1]["default_for"] == "chat"
    assert call("post", "/api/library/two/default")[1]["default_for"] == "chat"

    assert choices.everything().defaults == {"chat": "two"}
    assert {model["id"]: model["default"] for model in call("get", "/library")[1]["models"]} == {"one": False, "two": True}
    assert call("delete", "/api/library/two/default")[1]["default_for"] is None
    assert choices.everything().defaults == {}
