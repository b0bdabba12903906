"""The review queue and the wiki as a person sees them, signed in, with a vault full of hostile text."""

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile

from mlxplatform.accounts import keys
from mlxplatform.jobs.models import Job
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
        f"change/{quote(change.id)}/change/",
        "run/",
        f"run/{quote(change.run_id)}/change/",
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


def test_sources_rules_and_questions_are_set_on_a_page(person):
    vault = Vault.objects.create(name="notes")
    path = f"/console/memory/settings/{vault.pk}"
    key, _ = keys.create("<b>laptop</b>")
    shown = page_text(person.get(path))
    assert "ChatGPT export" in shown and "&lt;b&gt;laptop&lt;/b&gt;" in shown and "<b>laptop" not in shown

    rules = {"action": "change", "policy": "auto", "hand_edits": "wait", "model": "", "min_chunks": "3", "note_chars": "2000"}
    assert person.post(path, {**rules, "history_keys": [key.id], "own_history": "on"}).status_code == 302
    vault.refresh_from_db()
    assert (vault.policy, vault.hand_edits, vault.min_chunks, vault.own_history) == ("auto", "wait", 3, True)
    assert vault.history_keys == [key.id] and "checked> asked with" in page_text(person.get(path))
    assert person.post(path, rules).status_code == 302
    vault.refresh_from_db()
    assert vault.history_keys == [] and not vault.own_history
    for wrong in ({"policy": "yolo"}, {"min_chunks": "0"}, {"note_chars": "many"}, {"history_keys": ["key_none"]}):
        answer = person.post(path, {**rules, **wrong})
        assert answer.status_code == 400 and next(iter(wrong)).split("[")[0] in answer.content.decode()

    upload = SimpleUploadedFile("chats.jsonl", jsonl(CORPUS))
    answer = person.post(path, {"action": "import", "format": "jsonl", "file": upload})
    job = Job.objects.get(kind="memory_import")
    assert answer.status_code == 302 and answer["Location"].endswith(job.id)
    assert runs.run_import(Ctx(job.config))["added"] == 3
    assert person.post(path, {"action": "import", "format": "jsonl"}).status_code == 400

    asked = {"action": "ask", "question": "Which gasket?", "expected": "57 mm\n\n58 mm", "negative": "on"}
    assert person.post(path, asked).status_code == 302
    question = vault.questions.get()
    assert question.expected == ["57 mm", "58 mm"] and question.negative and "Which gasket?" in page_text(person.get(path))
    assert person.post(path, {"action": "ask", "question": "", "expected": ""}).status_code == 400
    person.post(path, {"action": "unask", "question": str(question.pk)})
    assert not vault.questions.exists()
    for missing in (f"{path}0", "/console/memory/settings/x"):
        assert person.get(missing).status_code == 404
    assert person.post(path, {"action": "dance"}).status_code == 404
