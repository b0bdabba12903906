"""Keys that are revoked, expire or lack a scope: at the door, and while a stream or a socket is open."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.test import AsyncClient, Client
from django.utils import timezone

from mlxplatform.accounts import identity, keys, middleware
from mlxplatform.accounts.models import ApiKey
from mlxplatform.jobs import service, sockets
from mlxplatform.jobs.models import Job
from tests.api.test_ownership import signed_in
from tests.fixtures import job_kinds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

#: Seconds a stream may take to notice.
PATIENCE = 20


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(settings.ENV.values, "heartbeat_seconds", 0.05)
    monkeypatch.setattr(middleware, "RECHECK_SECONDS", 0.0)
    monkeypatch.setattr(sockets, "RECHECK_SECONDS", 0.05)
    yield


def a_job() -> Job:
    job_kinds.register()
    return service.submit("test.lines", {"n": 1})


def new_key(*scopes: str, **more: Any) -> tuple[ApiKey, str]:
    made = keys.create("k", scopes=scopes or ("read",), **more)
    identity.forget()
    return made


def end(way: str, key: ApiKey) -> None:
    if way == "revoked":
        keys.revoke(key)
    elif way == "rotated":
        keys.rotate(key)
    else:
        ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    identity.forget()


async def streamed(job: Job, **headers: str) -> Any:
    return await AsyncClient().get(f"/api/jobs/{job.id}/stream", headers=headers)


async def parts_of(answer: Any) -> AsyncIterator[bytes]:
    async for part in answer.streaming_content:
        yield part


WAYS = ["revoked", "rotated", "expired"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_ends_with_its_key(way: str) -> None:
    job = await sync_to_async(a_job)()
    key, secret = await sync_to_async(new_key)()
    answer = await streamed(job, authorization=f"Bearer {secret}")
    assert answer.status_code == 200
    parts = parts_of(answer)
    for _ in range(4):
        await anext(parts)
    await sync_to_async(end)(way, key)

    async def rest() -> int:
        return len([part async for part in parts])

    await asyncio.wait_for(rest(), PATIENCE)


@pytest.mark.parametrize("way", WAYS)
async def test_a_socket_ends_with_its_key(way: str) -> None:
    job = await sync_to_async(a_job)()
    key, secret = await sync_to_async(new_key)()
    socket = opened(job.id, secret)
    assert (await socket.connect())[0]
    assert json.loads(await socket.receive_from())["seq"] == 1
    await sync_to_async(end)(way, key)
    assert (await socket.receive_output(timeout=PATIENCE))["code"] == sockets.NO_LONGER


def opened(job_id: str, secret: str) -> WebsocketCommunicator:
    from mlxplatform.asgi import application

    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"authorization", f"Bearer {secret}".encode())]
    socket = WebsocketCommunicator(application, f"/ws/jobs/{job_id}", headers=headers)
    socket.scope["client"] = ["127.0.0.1", 50000]
    return socket


async def test_no_socket_and_no_stream_for_a_key_that_ended_or_lacks_the_scope() -> None:
    job = await sync_to_async(a_job)()
    for way in WAYS:
        key, secret = await sync_to_async(new_key)()
        await sync_to_async(end)(way, key)
        assert not (await opened(job.id, secret).connect())[0], way
        assert (await streamed(job, authorization=f"Bearer {secret}")).status_code == 401, way
    for scope in ("inference", "write", "operate"):
        _, secret = await sync_to_async(new_key)(scope)
        assert not (await opened(job.id, secret).connect())[0], scope
        assert (await streamed(job, **{"x-api-key": secret})).status_code == 403, scope
    _, secret = await sync_to_async(new_key)(project="blue")
    socket = opened(job.id, secret)
    assert (await socket.connect())[0]
    assert (await socket.receive_output(timeout=PATIENCE))["code"] == sockets.NOT_FOUND


@pytest.mark.parametrize(
    ("host", "origin", "opens"),
    [
        ("localhost:8000", None, True),
        ("localhost:8000", "http://localhost:8000", True),
        ("localhost:8000", "http://localhost:3000", False),
        ("localhost:8000", "http://127.0.0.1:8000", False),
        ("localhost:8000", "null", False),
        ("localhost:8000", "", False),
        ("localhost:8000", "http://[", False),
        ("localhost:8000", "https://evil.example", False),
        ("evil.example", "http://evil.example", False),
        ("evil.example", None, False),
        ("localhost:8000", "http://app.example", True),
    ],
)
async def test_a_socket_is_for_programs_and_for_our_own_pages(
    host: str, origin: str | None, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxplatform.asgi import application

    monkeypatch.setitem(settings.ENV.values, "cors_origins", ["http://app.example"])
    job = await sync_to_async(a_job)()
    headers = [(b"host", host.encode()), *([(b"origin", origin.encode())] if origin is not None else [])]
    socket = WebsocketCommunicator(application, f"/ws/jobs/{job.id}", headers=headers)
    socket.scope["client"] = ["127.0.0.1", 50000]
    assert (await socket.connect())[0] is opens


async def test_a_stream_ends_with_the_person_who_is_kept_out() -> None:
    from django.contrib.auth import get_user_model

    job = await sync_to_async(a_job)()
    browser: Client = await sync_to_async(signed_in)("bea", "member", "default")
    client = AsyncClient(headers={"host": "localhost"})
    client.cookies.update(browser.cookies)
    answer = await client.get(f"/api/jobs/{job.id}/stream")
    assert answer.status_code == 200
    parts = parts_of(answer)
    for _ in range(4):
        await anext(parts)
    await sync_to_async(get_user_model().objects.filter(username="bea").update)(is_active=False)

    async def rest() -> int:
        return len([part async for part in parts])

    await asyncio.wait_for(rest(), PATIENCE)


@pytest.mark.parametrize("path", ["/api/jobs", "/v1/chat/completions"])
def test_a_broker_or_a_database_that_cannot_be_asked_at_the_door_is_503(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import redis
    from django.db import OperationalError

    def failing(error: Exception) -> Any:
        async def fail(*_: Any) -> None:
            raise error

        return fail

    client = Client(headers={"host": "localhost"}, raise_request_exception=False)
    for error, code in ((OperationalError("locked"), "database_busy"), (redis.ConnectionError("gone"), "broker_unavailable")):
        monkeypatch.setattr(middleware, "identify", failing(error))
        answer = client.post(path, "{}", content_type="application/json")
        assert answer.status_code == 503
        assert answer["Retry-After"]
        said = answer.json()
        assert (said.get("code") or said["error"]["code"]) == code


def test_a_key_with_limits_is_503_while_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxplatform.accounts import quotas
    from mlxplatform.broker.connections import async_client

    _, secret = keys.create("k", quota=keys.Quota(requests_per_minute=5))
    identity.forget()

    def away() -> Any:
        client = async_client()
        monkeypatch.setattr(client, "pipeline", _gone)
        return client

    monkeypatch.setattr(quotas, "async_client", away)
    client = Client(headers={"host": "localhost", "authorization": f"Bearer {secret}"}, raise_request_exception=False)
    answer = client.post("/v1/chat/completions", "{}", content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "broker_unavailable")


def _gone(*_: Any, **__: Any) -> Any:
    import redis

    raise redis.ConnectionError("gone")
