"""Webhooks: written with the end they tell, signed as the SDK checks, repeated until accepted."""

from __future__ import annotations

import datetime as dt
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import openai
import pytest
from django.test import Client
from django.utils import timezone

from mlxplatform.jobs import service as jobs
from mlxplatform.webhooks import addresses, service
from mlxplatform.webhooks.models import Delivery, Webhook
from tests.fixtures import job_kinds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(scope="module", autouse=True)
def _kinds() -> None:
    job_kinds.register()


class Receiver:
    """A real HTTP server that answers what the test says and keeps what came."""

    def __init__(self) -> None:
        self.status = 200
        self.got: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.got.append((dict(self.headers.items()), body))
                self.send_response(outer.status)
                if outer.status == 302:
                    self.send_header("Location", f"{outer.url}/inside")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.server.shutdown()
    one.server.server_close()


def make(client: Client, url: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/api/webhooks", {"url": url, **more}, content_type="application/json")
    assert answer.status_code == 200, answer.content
    return answer.json()["webhook"]


def end_a_job() -> str:
    job = jobs.submit("test.lines", {"n": 1})
    jobs.cancel(job.id)
    return job.id


def test_an_ended_job_is_told_once_signed_as_the_sdk_checks(client: Client, receiver: Receiver) -> None:
    hook = make(client, receiver.url, events=["job.cancelled"])
    job_id = end_a_job()
    assert service.deliver_due() == 1
    assert service.deliver_due() == 0
    ((headers, body),) = receiver.got
    event = openai.OpenAI(api_key="x").webhooks.unwrap(body, headers, secret=hook["secret"])
    assert (event.type, event.data.id) == ("job.cancelled", job_id)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        openai.OpenAI(api_key="x").webhooks.unwrap(body + b" ", headers, secret=hook["secret"])
    shown = client.get(f"/api/webhooks/{hook['id']}").json()
    assert "secret" not in shown["webhook"]
    assert [(one["state"], one["answer"]) for one in shown["deliveries"]] == [("delivered", "200")]


def test_other_events_and_projects_are_not_told(client: Client, receiver: Receiver) -> None:
    make(client, receiver.url, events=["batch.completed"])
    Webhook.objects.create(url=receiver.url, project="other")
    end_a_job()
    assert not Delivery.objects.exists()


def test_one_job_can_be_watched_and_is_told_once(client: Client, receiver: Receiver) -> None:
    job = jobs.submit("test.lines", {"n": 1})
    make(client, receiver.url, job=job.id)
    end_a_job()
    assert not Delivery.objects.exists()
    for _ in range(2):
        jobs.cancel(job.id)
        jobs.retry(job.id)
    assert Delivery.objects.count() == 1


def test_refusals_are_repeated_with_pauses_then_given_up(client: Client, receiver: Receiver) -> None:
    make(client, receiver.url)
    receiver.status = 500
    end_a_job()
    for attempt in range(1, len(service.RETRIES) + 2):
        assert service.deliver_due() == 0
        delivery = Delivery.objects.get()
        assert delivery.attempts == attempt
        Delivery.objects.update(due_at=timezone.now() - dt.timedelta(seconds=1))
    assert (delivery.state, delivery.answer, len(receiver.got)) == ("failed", "500", len(service.RETRIES) + 1)
    assert {headers["webhook-id"] for headers, _ in receiver.got} == {delivery.id}


def test_an_unreachable_receiver_is_a_plain_answer(client: Client) -> None:
    make(client, "http://127.0.0.1:1/")
    end_a_job()
    assert service.deliver_due() == 0
    assert Delivery.objects.get().answer == "the connection failed"


@pytest.mark.parametrize(("body", "field"), [
    ({}, "url"),
    ({"url": 5}, "url"),
    ({"url": "ftp://a"}, "url"),
    ({"url": "file:///etc/passwd"}, "url"),
    ({"url": "http://u:p@a.example/"}, "url"),
    ({"url": "http://[::1"}, "url"),
    ({"url": "http://a.example:99999/"}, "url"),
    ({"url": "http://localhost/", "events": ["x"]}, "events"),
    ({"url": "http://localhost/", "events": []}, "events"),
    ({"url": "http://localhost/", "job": "job_x"}, "job"),
    ({"url": "http://localhost/", "colour": 1}, "colour"),
])  # fmt: skip
def test_bad_webhooks_are_refused_by_field(client: Client, body: dict[str, Any], field: str) -> None:
    answer = client.post("/api/webhooks", body, content_type="application/json")
    assert answer.status_code in {400, 404}
    assert answer.json()["field"] == field
    assert not Webhook.objects.exists()


def test_a_key_cannot_make_the_server_call_into_its_network(receiver: Receiver) -> None:
    hook = Webhook.objects.create(url=receiver.url, created_by="key:1")
    end_a_job()
    service.deliver_due()
    assert receiver.got == []
    assert hook.deliveries.get().answer == "the address is not public"


def test_a_receiver_cannot_send_the_server_elsewhere(client: Client, receiver: Receiver) -> None:
    hook = make(client, receiver.url)
    receiver.status = 302
    end_a_job()
    assert service.deliver_due() == 0
    assert len(receiver.got) == 1
    assert Webhook.objects.get(pk=hook["id"]).deliveries.get().answer == "302"


def test_a_network_without_ipv4_reaches_the_public_through_its_gateway() -> None:
    assert addresses.is_public("64:ff9b::8.8.8.8", 80) and addresses.is_public("2606:4700::1111", 80)
    assert not addresses.is_public("64:ff9b::10.0.0.1", 80)


def test_a_name_that_changes_its_mind_is_looked_up_once(
    client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is connected to is the address that was checked, under the name that was asked for."""
    port, asked, real = receiver.server.server_port, [], socket.getaddrinfo

    def lookup(host: Any, *rest: Any, **more: Any) -> Any:
        if host in {"hook.test", b"hook.test"}:
            asked.append(host)
            return real("127.0.0.1" if len(asked) == 1 else "127.0.0.9", *rest, **more)
        return real(host, *rest, **more)

    Webhook.objects.create(url=f"http://hook.test:{port}/hook", created_by="local")
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    end_a_job()
    assert service.deliver_due() == 1
    ((headers, _),) = receiver.got
    assert {name.lower(): value for name, value in headers.items()}["host"] == f"hook.test:{port}"
    assert len(asked) == 1


def test_delete(client: Client, receiver: Receiver) -> None:
    hook = make(client, receiver.url)
    assert len(client.get("/api/webhooks").json()["webhooks"]) == 1
    assert client.delete(f"/api/webhooks/{hook['id']}").json() == {"ok": True}
    assert client.get(f"/api/webhooks/{hook['id']}").status_code == 404
