"""Promises about data: a project's is deleted whole, pages run no foreign script, and no secret is written down."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.test import Client
from django.urls import reverse

from mlxplatform.accounts import identity, keys
from mlxplatform.accounts.models import AuditEntry
from mlxplatform.console.navigation import SECTIONS
from mlxplatform.files import blobs
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.memory.vault import Wiki
from mlxplatform.operations import erasure
from tests.api.test_ownership import BLUE, RED, signed_in
from tests.api.test_permissions import Everything, holder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


def rows_of(project: str) -> dict[str, int]:
    found = {}
    for model in apps.get_models():
        if any(field.name == "project" for field in model._meta.fields) and model not in erasure.KEPT:
            found[model.__name__] = model._default_manager.filter(project=project).count()
    return {name: count for name, count in found.items() if count}


def test_all_data_of_a_project_goes_and_nobody_elses(tmp_path: Path) -> None:
    red = Everything(RED)
    blue = Everything.__mro__[1](BLUE)  # what both projects may have under one id is made once
    Wiki.of(red.vault).set_up()
    theirs = rows_of(BLUE)
    client = holder(RED, "write", "read")
    shown = client.get("/api/data").json()
    assert shown["holdings"]["jobs"] == 2
    ask = {"content_type": "application/json"}
    assert client.delete("/api/data", "{}", **ask).json()["code"] == "confirmation_required"
    assert client.delete("/api/data", '{"project": "blue"}', **ask).status_code == 400
    assert rows_of(RED)
    answer = client.delete("/api/data", '{"project": "red"}', **ask)
    assert answer.status_code == 200, answer.content
    assert rows_of(RED) == {}
    assert not blobs.path_of(red.file.id).exists()
    assert not Wiki.of(red.vault).root.exists()
    assert rows_of(BLUE) == theirs
    assert blobs.path_of(blue.file.id).exists()
    assert AuditEntry.objects.filter(action="data.erase", target=RED).exists()
    assert client.get("/api/data").json()["holdings"] == {}, "the key still works"


def test_a_running_job_is_stopped_before_anything_is_deleted() -> None:
    red = Everything(RED)
    Job.objects.filter(pk=red.job.pk).update(state="running", owner="cpu:1:x")
    with pytest.raises(Refusal) as refused:
        erasure.erase(RED, actor="test")
    assert (refused.value.status, refused.value.code) == (409, "jobs_running")
    assert Job.objects.get(pk=red.job.pk).state == "cancelling"
    assert blobs.path_of(red.file.id).exists()


def test_every_page_carries_the_policy_and_is_kept_by_no_cache() -> None:
    boss = signed_in("anna", "admin", BLUE)
    pages = [reverse(link.route) for section in SECTIONS for link in section.links if link.route != "admin:index"]
    for path in [*pages, "/console/password", "/login/"]:
        answer = boss.get(path) if path != "/login/" else Client(headers={"host": "localhost"}).get(path)
        policy = answer["Content-Security-Policy"]
        assert "script-src 'self';" in policy and "unsafe-eval" not in policy, path
        assert "unsafe-inline" not in policy.replace("style-src-attr 'unsafe-inline'", ""), path
        assert "no-store" in answer["Cache-Control"], path
        assert answer["X-Frame-Options"] == "DENY", path
        assert answer["X-Content-Type-Options"] == "nosniff", path
        page = answer.content.decode()
        assert " onclick=" not in page and "<script>" not in page and "style=" not in page, path


def test_no_secret_is_in_logs_rows_or_pages(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    boss = signed_in("anna", "admin", BLUE)
    made = boss.post("/console/keys/action", {"action": "create", "name": "k", "scopes": ["read"]}, follow=True)
    secret = made.context["secret"]
    assert secret.startswith(keys.KEY_PREFIX)
    identity.forget()
    program = Client(headers={"host": "localhost", "authorization": f"Bearer {secret}"}, REMOTE_ADDR="192.0.2.1")
    assert program.get("/api/jobs").status_code == 200
    assert program.post("/api/keys", "{", content_type="application/json").status_code == 403
    program.get("/v1/files/%00")
    everything = caplog.text + "".join(capfd.readouterr())
    pages = ["/console/keys", "/console/usage", "/console/people", "/", "/admin/accounts/apikey/", "/admin/accounts/auditentry/"]
    for path in pages:
        everything += boss.get(path).content.decode()
    everything += str(list(AuditEntry.objects.values()))
    assert secret not in everything
    assert settings.SECRET_KEY not in everything
    database = Path(str(settings.DATABASES["default"]["NAME"]))
    if database.exists():
        assert secret.encode() not in database.read_bytes() + _beside(database)


def _beside(database: Path) -> bytes:
    log = database.with_name(database.name + "-wal")
    return log.read_bytes() if log.exists() else b""


def test_a_key_over_plain_http_from_elsewhere_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = keys.create("k")
    identity.forget()
    said: list[Any] = []
    monkeypatch.setattr(identity.log, "warning", lambda *words, **facts: said.append((words, facts)))
    identity._warned.clear()
    client = Client(headers={"host": "localhost", "authorization": f"Bearer {secret}"})
    client.get("/api/jobs")
    client.get("/api/jobs", REMOTE_ADDR="192.0.2.1", secure=True)
    assert said == []
    for _ in range(3):
        client.get("/api/jobs", REMOTE_ADDR="192.0.2.1")
    assert len(said) == 1 and "plain HTTP" in said[0][0][0]


def test_a_proxy_on_this_machine_does_not_make_strangers_local() -> None:
    identity.forget()
    near = Client(headers={"host": "localhost"})
    assert near.get("/api/jobs").status_code == 200
    for header in ("x-forwarded-for", "x-forwarded-proto", "forwarded", "via", "x-real-ip", "cf-connecting-ip", "true-client-ip"):
        assert near.get("/api/jobs", headers={header: "127.0.0.1"}).status_code == 401
