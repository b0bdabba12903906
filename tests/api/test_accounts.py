"""Keys at the door: who gets in, in which dialect who does not, and what is counted."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.http import HttpRequest, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.utils import timezone

from mlxplatform.accounts import identity, keys, usage
from mlxplatform.accounts.middleware import QuotaMiddleware
from mlxplatform.accounts.models import ApiKey, AuditEntry, UsageDay
from mlxplatform.accounts.quotas import admitted, spend, spend_now
from mlxplatform.inference.contract import Refusal, Usage

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    identity.forget()
    # The writer's pace is not what these tests are about: they write when they want to.
    monkeypatch.setattr(usage, "FLUSH_SECONDS", 3600.0)


@pytest.fixture
def client() -> Client:
    return Client(headers={"host": "localhost"})


def make(**options: Any) -> tuple[ApiKey, str]:
    made = keys.create("test", **options)
    identity.forget()
    return made


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_without_any_key_this_machine_may_ask_and_others_may_not(client: Client) -> None:
    assert client.get("/api/usage").status_code == 200
    identity.forget()
    assert client.get("/api/usage", REMOTE_ADDR="192.0.2.7").status_code == 401


def test_the_first_key_closes_the_door_and_both_headers_open_it(client: Client) -> None:
    _, secret = make()
    assert client.get("/api/usage").status_code == 401
    assert client.get("/api/usage", headers=bearer(secret)).status_code == 200
    assert client.get("/api/usage", headers={"authorization": f"bearer {secret}"}).status_code == 200
    assert client.get("/api/usage", headers={"x-api-key": secret}).status_code == 200
    assert client.get("/api/usage", headers={"x-api-key": "wrong", **bearer(secret)}).status_code == 200
    assert client.get("/api/usage", headers=bearer("wrong")).status_code == 401


def test_a_revoked_key_does_not_reopen_the_door(client: Client) -> None:
    key, secret = make()
    keys.revoke(key)
    identity.forget()
    assert client.get("/api/usage", headers=bearer(secret)).status_code == 401
    assert client.get("/api/usage").status_code == 401


@pytest.mark.parametrize("secret", ["", " ", "\u00e9", "x" * 5000, "null", "sk-mlxp-"])
def test_odd_keys_are_wrong_keys(client: Client, secret: str) -> None:
    make()
    answer = client.get("/api/usage", headers={"x-api-key": secret.encode().decode("latin-1")})
    assert answer.status_code == 401


def test_refusals_speak_the_dialect_of_the_path(client: Client) -> None:
    make()
    openai = client.get("/v1/models")
    assert openai.status_code == 401
    assert openai.json()["error"]["code"] == "invalid_api_key"
    anthropic = client.post("/v1/messages", data="{}", content_type="application/json")
    assert anthropic.status_code == 401
    assert anthropic.json()["type"] == "error"
    assert anthropic.json()["error"]["type"] == "authentication_error"
    assert client.get("/api/usage").json()["ok"] is False


def test_an_expired_key_and_a_missing_scope_are_refused(client: Client) -> None:
    key, secret = make(expires_at=timezone.now() + timedelta(hours=1))
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get("/api/usage", headers=bearer(secret)).status_code == 401
    _, reader = make(scopes=["read"])
    refused = client.get("/api/keys", headers=bearer(reader))
    assert refused.status_code == 403
    assert refused.json()["code"] == "missing_scope"


def test_a_key_is_made_shown_once_rotated_and_revoked_over_http(client: Client) -> None:
    made = client.post("/api/keys", data={"name": "laptop", "scopes": ["admin"]}, content_type="application/json")
    assert made.status_code == 201
    secret, key_id = made.json()["secret"], made.json()["key"]["id"]
    shown = client.get(f"/api/keys/{key_id}", headers=bearer(secret))
    assert secret not in shown.content.decode()
    assert secret[:12] == shown.json()["key"]["prefix"]
    rotated = client.post(f"/api/keys/{key_id}/rotate", headers=bearer(secret)).json()["secret"]
    assert client.get("/api/keys", headers=bearer(secret)).status_code == 401
    assert client.delete(f"/api/keys/{key_id}", headers=bearer(rotated)).status_code == 200
    assert client.get("/api/keys", headers=bearer(rotated)).status_code == 401
    assert set(AuditEntry.objects.values_list("action", flat=True)) == {"key.create", "key.rotate", "key.revoke"}
    assert not ApiKey.objects.filter(digest__contains=secret).exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "x", "scopes": ["root"]}, "scopes"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "project": "../etc"}, "project"),
        ({"name": "x", "concurrency": -1}, "concurrency"),
        ({"name": "x", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_a_bad_key_request_names_its_field(client: Client, body: dict[str, Any], field: str) -> None:
    answer = client.post("/api/keys", data=body, content_type="application/json")
    assert answer.status_code == 400
    assert answer.json()["field"].startswith(field)
    assert not ApiKey.objects.exists()


def test_a_session_needs_its_groups_scope_and_a_csrf_token() -> None:
    make()
    user = get_user_model().objects.create_user("vera", password="pw-of-vera-1")
    user.groups.add(Group.objects.get(name="viewer"))
    browser = Client(enforce_csrf_checks=True, headers={"host": "localhost"})
    browser.force_login(user)
    assert browser.get("/api/usage").status_code == 200
    assert browser.get("/api/keys").status_code == 403
    user.groups.set([Group.objects.get(name="admin")])
    without = browser.post("/api/keys", data={"name": "x"}, content_type="application/json")
    assert without.status_code == 403
    assert without.json()["code"] == "csrf_failed"
    assert ApiKey.objects.count() == 1


async def test_a_keys_limits_hold_and_say_when_to_come_back(broker: redis.Redis) -> None:
    async with admitted(_limited(concurrency=1), "r1"):
        with pytest.raises(Refusal) as busy:
            async with admitted(_limited(concurrency=1), "r2"):
                pass
    assert busy.value.status == 429
    assert busy.value.retry_after
    async with admitted(_limited(concurrency=1), "r3"):
        pass
    for used in range(2):
        async with admitted(_limited(requests_per_minute=2), f"m{used}") as standing:
            assert standing is not None and standing.remaining == 1 - used
    with pytest.raises(Refusal, match="requests a minute"):
        async with admitted(_limited(requests_per_minute=2), "m3"):
            pass
    await spend("key_test", 10)
    with pytest.raises(Refusal, match="used up"):
        async with admitted(_limited(tokens_per_day=10), "t1"):
            pass


@pytest.mark.parametrize(
    "path", ["/v1/batches", "/v1/messages/batches", "/api/dataset/submit", "/api/dataset/preview", "/api/memory/synthesize"]
)
def test_a_key_whose_tokens_are_used_up_orders_no_work_that_needs_more(client: Client, broker: redis.Redis, path: str) -> None:
    row, secret = make(scopes=["read", "write"], quota=keys.Quota(tokens_per_day=10))
    before = client.post(path, data={}, content_type="application/json", headers=bearer(secret))
    assert before.status_code in {400, 404}
    spend_now(row.id, 10)
    after = client.post(path, data={}, content_type="application/json", headers=bearer(secret))
    assert after.status_code == 429 and after["Retry-After"] and "used up" in after.content.decode()
    assert client.get("/v1/batches", headers=bearer(secret)).status_code == 200


async def test_what_holds_no_place_is_passed_on_as_it_is() -> None:
    request = RequestFactory().get("/v1/files/file-1/content")
    request.identity = _limited(concurrency=1)

    async def download(_: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"one ", b"two"]))

    answer = await QuotaMiddleware(download)(request)
    assert not answer.is_async and b"".join(answer.streaming_content) == b"one two"


def _limited(**limits: int) -> identity.Identity:
    return identity.Identity("key:key_test", "default", frozenset({"inference"}), "key_test", keys.Quota(**limits))


def test_usage_is_added_up_and_written_once() -> None:
    for _ in range(3):
        usage.add("default", "key_a", "tiny", Usage(prompt=10, completion=5, cached=4))
    usage.add("default", "", "tiny", Usage(prompt=1, completion=1))
    assert usage.flush() == 2
    assert usage.flush() == 0
    usage.add("default", "key_a", "tiny", Usage(prompt=10, completion=5, cached=4))
    usage.flush()
    row = UsageDay.objects.get(key_id="key_a")
    assert (row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (4, 40, 16, 20)


def test_usage_exports_csv_that_no_spreadsheet_runs(client: Client) -> None:
    usage.add("default", "", "=cmd()", Usage(prompt=1, completion=1))
    usage.flush()
    answer = client.get("/api/usage?format=csv")
    assert answer["Content-Type"].startswith("text/csv")
    assert "'=cmd()" in answer.content.decode()
    assert client.get("/api/usage?start=yesterday").json()["field"] == "start"


def test_one_projects_key_does_not_see_anothers_usage(client: Client) -> None:
    _, secret = make(project="blue")
    usage.add("red", "", "tiny", Usage(prompt=1, completion=1))
    usage.add("blue", "", "tiny", Usage(prompt=2, completion=1))
    usage.flush()
    rows = client.get("/api/usage", headers=bearer(secret)).json()["usage"]
    assert [row["project"] for row in rows] == ["blue"]


async def test_the_async_path_is_guarded_too() -> None:
    from asgiref.sync import sync_to_async

    await sync_to_async(make)()
    answer = await AsyncClient(headers={"host": "localhost"}).get("/v1/models")
    assert answer.status_code == 401
    assert json.loads(answer.content)["error"]["type"] == "authentication_error"


def test_who_made_a_dataset_and_who_pinned_a_model_is_in_the_audit_log(
    client: Client, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxplatform.api import residency

    async def holders(model_id: str) -> list[Any]:
        return []

    monkeypatch.setattr(residency, "_holders", holders)
    key, secret = make(scopes=["admin"])
    made = client.post(
        "/api/datasets",
        '{"template": "sft_qa_pairs", "inputs": {"pairs_text": "Q: a\\nA: b"}}',
        content_type="application/json",
        headers=bearer(secret),
    ).json()
    assert made["ok"], made
    for action in ("pin", "unpin", "load", "unload"):
        assert client.post(f"/api/models/tiny/{action}", headers=bearer(secret)).status_code == 200
    wanted = {
        ("dataset.submit", made["dataset_id"]),
        *((f"model.{action}", "tiny") for action in ("pin", "unpin", "load", "unload")),
    }
    assert wanted <= set(AuditEntry.objects.filter(actor=f"key:{key.id}").values_list("action", "target"))
