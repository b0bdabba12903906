"""Markup in every text that any page shows is shown as text: a corpus through every column, on every console and admin page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db import models
from django.test import Client
from django.urls import reverse

from mlxplatform.console.navigation import SECTIONS
from mlxplatform.jobs.models import Job, JobEvent, Worker
from tests.api.test_ownership import BLUE, RED, signed_in
from tests.api.test_permissions import Everything

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

CORPUS = (
    "<img src=x onerror=alert(1)></pre><script>alert(1)</script>",
    "\"'><svg/onload=alert(1) x=\"' onmouseover=alert(1) autofocus onfocus=alert(1) ",
    "</textarea></title></style><iframe src=javascript:alert(1)></iframe><a href=javascript:alert(1)>x</a>",
    "{{7*7}}{% load x %}${7*7}<!--<base href=//evil.example/>",
)
#: Columns whose values the platform itself reads: markup cannot get in there.
STRUCTURE = {
    "id",
    "project",
    "state",
    "status",
    "queue",
    "cron",
    "timezone",
    "misfire",
    "dialect",
    "template",
    "type",
    "misfires",
}
STRUCTURE |= {
    "parent",
    "job",
    "digest",
    "outcome",
    "policy",
    "hand_edits",
    "wish",
    "host",
    "revision",
    "stem",
    "location",
    "idempotency_key",
}


class Found(HTMLParser):
    """Elements and attributes that only markup of the corpus can have made."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in {"iframe", "base"} or (tag == "script" and "alert" in str(values)):
            self.foreign.append(self.get_starttag_text() or tag)
        if tag == "img" and values.get("src") == "x":
            self.foreign.append("img")
        for name, value in attrs:
            if (name.startswith("on") and value and "alert" in value) or (value or "").strip().lower().startswith("javascript:"):
                self.foreign.append(f"{tag} {name}")


def poison(text: str) -> None:
    """Write ``text`` into every column of every row that takes text and means nothing to the platform."""
    for model in apps.get_models():
        if not model._meta.app_config.name.startswith("mlxplatform."):
            continue
        for field in model._meta.concrete_fields:
            if field.primary_key or field.unique or field.choices or field.is_relation or field.name in STRUCTURE:
                continue
            if type(field) in {models.CharField, models.TextField} and "JSON" not in field.name:
                limit = field.max_length or len(text)
                if limit >= 30 and field.name not in {"request", "items", "answer", "metadata", "body", "kind", "digest"}:
                    model._default_manager.update(**{field.name: text[:limit]})
    Job.objects.update(config={"prompt": text, text: [text]}, result={"answer": text}, kind=text[:20])
    for job in Job.objects.all():
        for number, kind in enumerate(("log", "state", "started", "failed"), 1000):
            JobEvent.objects.create(job=job, seq=number, type=kind, payload={"line": text, "error": text, text: text})


def pages(red: Everything) -> list[str]:
    found = [reverse(link.route) for section in SECTIONS for link in section.links]
    found += [path for path in red.pages() if "/memory/" not in path]
    found += ["/console/datasets/new?template=self_instruct", "/admin/upkeep/"]
    for model in admin.site._registry:
        base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        found.append(base)
        found += [f"{base}{quote(str(key))}/change/" for key in model._default_manager.values_list("pk", flat=True)[:2]]
    return found


@pytest.mark.parametrize("text", CORPUS)
def test_markup_is_text_on_every_page(text: str) -> None:
    boss = signed_in("anna", "admin", BLUE)
    red = Everything(RED)
    Worker.objects.create(id="cpu:1:x", queue="cpu", machine="m", pid=1)
    poison(text)
    boss.raise_request_exception = False
    bad: dict[str, Any] = {}
    for path in pages(red):
        answer = boss.get(path)
        parser = Found()
        parser.feed(answer.content.decode())
        if parser.foreign or answer.status_code >= 500:
            bad[path] = parser.foreign or answer.status_code
    assert not bad


@pytest.mark.parametrize("text", CORPUS)
def test_markup_in_what_is_asked_for_comes_back_as_text(text: str) -> None:
    boss = signed_in("anna", "admin", BLUE)
    asked = {
        "/console/jobs": {"state": text, "kind": text, "page": text},
        "/console/memory": {"q": text, "vault": text},
        "/console/chat": {"model": text},
        "/console/models/finetune": {"model": text, "dataset": text},
        "/console/models/quantize": {"model": text},
        "/console/datasets/new": {"template": text},
        "/login/": {"next": text},
    }
    for path, query in asked.items():
        parser = Found()
        client = boss if path != "/login/" else Client(headers={"host": "localhost"})
        parser.feed(client.get(path, query).content.decode())
        assert not parser.foreign, path
    posted = {
        "/console/schedules/new": {"name": text, "kind": text, "cron": text, "timezone": text, "misfire": text, "config": text},
        "/console/people/action": {"action": "add", "name": text, "role": text, "project": text},
        "/console/keys/action": {"action": "create", "name": text, "scopes": text, "project": text},
        "/console/models/finetune": {"model": text, "dataset": text},
        "/console/datasets/new?template=self_instruct": {"seeds": text, "run_name": text, "run_seed": text},
        "/console/jobs/action": {"action": "cancel", "job": text, "back": text},
    }
    for path, form in posted.items():
        parser = Found()
        answer = boss.post(path, form, follow=True)
        assert answer.status_code < 500, path
        parser.feed(answer.content.decode())
        assert not parser.foreign, path


def test_the_admin_finds_the_job_of_a_batch_whatever_its_id() -> None:
    """The admin reads ``_22`` in an address as an escaped character, and ids of jobs may hold that."""
    boss = signed_in("anna", "admin", BLUE)
    red = Everything(RED)
    Job.objects.create(id="job_22ab", kind="batch", queue="cpu", project=RED)
    type(red.batch).objects.filter(pk=red.batch.pk).update(job="job_22ab")
    page = boss.get(f"/admin/batches/batch/{quote(red.batch.pk)}/change/").content.decode()
    link = re.search(r'href="(/admin/jobs/job/[^"]+/change/)"', page)
    assert link
    assert boss.get(link[1]).status_code == 200
