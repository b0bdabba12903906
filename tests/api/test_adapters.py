"""``/v1/adapters`` on the running platform: list, mount, use, unmount, and whose they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from mlxplatform import paths
from tests.fixtures.adapter import write_adapter
from tests.system.stack import Stack, eventually

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]


@pytest.fixture
def adapters(stack: Stack) -> Iterator[Stack]:
    """tone: everybody's. theirs: another project's. wide: made for a larger model. foreign: for one that is not here."""
    folder = paths.adapters_dir(stack.home)
    write_adapter(folder / "tone", base_model=stack.model, name="ft:tiny:local:tone:tone")
    write_adapter(folder / "theirs", base_model=stack.model, name="ft:tiny:local:x:theirs", project="elsewhere")
    write_adapter(folder / "wide", base_model=stack.model, hidden=128)
    write_adapter(folder / "foreign", base_model="not-here")
    eventually(lambda: {"tone", "theirs", "wide", "foreign"} <= on_host(stack), what="the adapters to be seen")
    yield stack
    for name in ("tone", "theirs", "wide", "foreign"):
        shutil.rmtree(folder / name)
    stack.http.delete("/v1/adapters/tone")


def on_host(stack: Stack) -> set[str]:
    return {entry["id"] for entry in stack.http.get("/stats").json()["hosts"][0]["adapters"]}


def mounted(stack: Stack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stack.http.get("/v1/adapters").json()["adapters"]
    return found


def chat(stack: Stack, **fields: Any) -> httpx.Response:
    body = {"model": stack.model, "messages": QUESTION, "max_tokens": 12, "temperature": 0, **fields}
    return stack.http.post("/v1/chat/completions", json=body)


def test_mount_list_use_and_unmount(adapters: Stack, post: Callable[..., httpx.Response]) -> None:
    available = {entry["id"]: entry for entry in adapters.http.get("/v1/adapters/available").json()["adapters"]}
    assert available["tone"]["base_model"] == adapters.model
    assert available["tone"]["mounted"] is False
    answer = post("/v1/adapters", {"id": "tone", "path": "tone"})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert set(told) == {"id", "mounted_layers", "rank", "scale"}
    assert told["mounted_layers"] > 0
    (entry,) = [entry for entry in mounted(adapters) if entry["id"] == "tone"]
    assert entry["mounted_layers"] == told["mounted_layers"]
    assert str(adapters.home) not in json.dumps([entry, available])
    plain = chat(adapters).json()["choices"][0]["message"]["content"]
    assert chat(adapters, adapter="tone").json()["choices"][0]["message"]["content"] != plain
    assert chat(adapters, adapter="none").json()["choices"][0]["message"]["content"] == plain
    removed = adapters.http.delete("/v1/adapters/tone")
    assert removed.json() == {"id": "tone", "removed_layers": told["mounted_layers"]}
    eventually(lambda: not [entry for entry in mounted(adapters) if entry["id"] == "tone"], what="the unmounting")
    assert adapters.http.delete("/v1/adapters/tone").status_code == 404
    noted = adapters.http.get("/api/audit").json()
    assert [entry["action"] for entry in noted["entries"] if entry["target"] == "tone"] == ["adapter.unmount", "adapter.mount"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "id"),
        ({"id": ""}, 400, "id"),
        ({"id": 7}, 400, "id"),
        ({"id": "a+b"}, 400, "id"),
        ({"id": "tone", "path": "/etc"}, 400, "path"),
        ({"id": "missing"}, 404, "id"),
        ({"id": "../tone"}, 404, "id"),
        ({"id": "wide"}, 400, "id"),
        ({"id": "foreign"}, 400, "id"),
        ({"id": "theirs"}, 404, "id"),
    ],
)
def test_what_cannot_be_mounted_is_refused(
    adapters: Stack, post: Callable[..., httpx.Response], body: dict[str, Any], status: int, param: str
) -> None:
    answer = post("/v1/adapters", body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert str(adapters.home) not in answer.text
    assert not [entry for entry in mounted(adapters) if entry["id"] == body.get("id")]


def test_another_projects_adapter_does_not_exist(adapters: Stack) -> None:
    listed = [entry["id"] for entry in adapters.http.get("/v1/adapters/available").json()["adapters"]]
    assert "theirs" not in listed
    assert "tone" in listed
    models = [model["id"] for model in adapters.http.get("/v1/models").json()["data"]]
    assert "ft:tiny:local:tone:tone" in models
    assert "ft:tiny:local:x:theirs" not in models
    for fields in ({"model": "ft:tiny:local:x:theirs"}, {"adapter": "theirs"}, {"adapter": "tone+theirs"}):
        answer = chat(adapters, **fields)
        assert answer.status_code == 404, answer.text
    assert chat(adapters, model="ft:tiny:local:tone:tone").status_code == 200
    assert adapters.http.delete("/v1/adapters/theirs").status_code == 404
