"""What is in memory, over HTTP, on the running platform."""

from __future__ import annotations

from typing import Any

from tests.system.stack import Stack, eventually


def engines(stack: Stack) -> list[str]:
    return [engine["model"] for engine in stack.http.get("/stats").json()["hosts"][0]["engines"]]


def entry(stack: Stack) -> dict[str, Any]:
    models = stack.http.get("/stats").json()["hosts"][0]["models"]
    return next(model for model in models if model["id"] == stack.model)


def ask(stack: Stack) -> int:
    body = {"model": stack.model, "max_tokens": 2, "messages": [{"role": "user", "content": "Say hello."}]}
    return stack.http.post("/v1/chat/completions", json=body).status_code


def test_a_plan_tells_bytes_and_whom_it_would_put_out(stack: Stack) -> None:
    answer = stack.http.get(f"/api/models/{stack.model}/plan").json()
    assert answer["ok"] is True
    (host,) = answer["hosts"]
    assert host["fits"] is True
    assert host["evict"] == []
    assert 0 < host["needed_bytes"] < host["budget_bytes"]


def test_pinning_shows_and_can_be_undone(stack: Stack) -> None:
    assert stack.http.post(f"/api/models/{stack.model}/pin", json={}).status_code == 200
    eventually(lambda: entry(stack)["pinned"], what="the pin")
    assert stack.http.post(f"/api/models/{stack.model}/unpin", json={}).status_code == 200
    eventually(lambda: not entry(stack)["pinned"], what="the end of the pin")


def test_an_unloaded_model_comes_back_at_the_next_request(stack: Stack) -> None:
    assert ask(stack) == 200
    assert stack.http.post(f"/api/models/{stack.model}/unload", json={}).status_code == 200
    eventually(lambda: stack.model not in engines(stack), what="the unload")
    assert ask(stack) == 200
    eventually(lambda: stack.model in engines(stack), what="the load")


def test_reading_loads_nothing(stack: Stack) -> None:
    assert ask(stack) == 200
    before = sorted(engines(stack))
    stack.http.get("/v1/models")
    stack.http.get("/api/models/all-minilm-l6-v2/plan")
    assert sorted(engines(stack)) == before


def test_an_unknown_model_is_404_in_the_platforms_dialect(stack: Stack) -> None:
    for method, path in (("GET", "plan"), ("POST", "pin"), ("POST", "unload"), ("POST", "load")):
        answer = stack.http.request(method, f"/api/models/no-such/{path}", json={} if method == "POST" else None)
        assert answer.status_code == 404
        assert answer.json()["ok"] is False
        assert answer.json()["code"] == "model_not_found"


def test_metrics_are_prometheus_text(stack: Stack) -> None:
    assert ask(stack) == 200
    assert stack.http.get("/metrics").headers["content-type"].startswith("text/plain")
    counted = f'mlxplatform_emitted_tokens{{host="local",model="{stack.model}"}}'
    # Hosts tell of themselves once a second.
    eventually(lambda: counted in stack.http.get("/metrics").text, what="the engine's own count")
