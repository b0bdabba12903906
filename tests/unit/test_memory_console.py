"""The review queue and the wiki as a person sees them, signed in, with a vault full of hostile text."""

import pytest
from django.contrib.auth.models import User

from mlxplatform.memory import runs
from mlxplatform.memory.ingest import ingest
from mlxplatform.memory.models import Change, Vault
from mlxplatform.memory.sources.registry import READERS
from mlxplatform.memory.vault import Wiki
from tests.fixtures.memory_notes import CORPUS, Ctx, Scripted, jsonl

pytestmark = pytest.mark.django_db(transaction=True)
HOSTILE = {
    "id": "x",
    "title": "<img src=x onerror=alert(1)>",
    "updated_at": "2026-01-07T00:00:00Z",
    "messages": [
        {"role": "user", "content": "</pre><script>alert(1)</script> Lelit Anna?"},
        {"role": "assistant", "content": "The Lelit Anna boiler is brass."},
    ],
}


@pytest.fixture
def person(client, settings, tmp_path):
    settings.ENV = type(settings.ENV)({**settings.ENV.values, "home": tmp_path}, "", "")
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}
    client.force_login(User.objects.create_superuser("ann", password="x"))
    client.defaults["HTTP_HOST"] = "localhost"
    return client


def page_text(response):
    assert response.status_code == 200, response.content[:500]
    return response.content.decode()


def test_review_from_the_queue_to_the_wiki_and_back(person):
    assert "There is no memory yet" in page_text(person.get("/console/memory"))
    person.post("/console/memory/action", {"action": "init"})
    vault = Vault.objects.get()
    ingest(vault, "jsonl", READERS["jsonl"](jsonl([*CORPUS, HOSTILE]), "x"))
    runs.synthesize(Ctx({"vault": vault.name}), vault, Scripted())
    overview = page_text(person.get("/console/memory"))
    change = Change.objects.get()
    assert f"/console/memory/changes/{change.id}" in overview
    card = page_text(person.get(f"/console/memory/changes/{change.id}"))
    assert "+# Lelit Anna" in card and "57 mm gasket" in card
    assert "<script>alert" not in card and "<img src=x" not in card and "&lt;script&gt;" in card
    response = person.post(f"/console/memory/changes/{change.id}/action", {"action": "accept"})
    assert response.status_code == 302 and Wiki.of(vault).read("Lelit_Anna")
    article = page_text(person.get(f"/console/memory/pages/{vault.pk}/Lelit_Anna"))
    assert "57 mm gasket" in article and "<img src=x" not in article and "memory: create Lelit Anna" in article
    run = page_text(person.get(f"/console/memory/runs/{change.run_id}"))
    assert "extract" in run
    person.post(f"/console/memory/changes/{change.id}/action", {"action": "revert"})
    assert Wiki.of(vault).read("Lelit_Anna") is None
    for path in ("changes/none", "runs/none", f"pages/{vault.pk}/none", "pages/99/none"):
        assert person.get(f"/console/memory/{path}").status_code == 404


def test_the_admin_shows_changes_and_schedules_as_text(person):
    vault = Vault.objects.create(name="notes")
    Wiki.of(vault).set_up()
    ingest(vault, "jsonl", READERS["jsonl"](jsonl([*CORPUS, HOSTILE]), "x"))
    runs.synthesize(Ctx({"vault": vault.name}), vault, Scripted())
    change = Change.objects.get()
    for path in (
        "change/",
        f"change/{change.id}/change/",
        "run/",
        f"run/{change.run_id}/change/",
        "vault/",
        "conversation/",
        "question/",
        "tombstone/",
    ):
        text = page_text(person.get(f"/admin/memory/{path}"))
        assert "<script>alert" not in text and "<img src=x" not in text
    page_text(person.get("/admin/schedules/schedule/"))
    page_text(person.get("/admin/schedules/schedule/add/"))
    body = {"action": "accept_changes", "_selected_action": [change.id]}
    assert person.post("/admin/memory/change/", body).status_code == 302
    assert Change.objects.get().state == "accepted"
