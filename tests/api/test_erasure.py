"""Deleting what one key or one person made, and how long things are kept."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from django.utils import timezone

from mlxplatform.accounts import identity, keys
from mlxplatform.accounts.models import AuditEntry
from mlxplatform.batches.models import Batch
from mlxplatform.datasets.models import Dataset
from mlxplatform.files import blobs
from mlxplatform.files import service as files
from mlxplatform.inference import history
from mlxplatform.inference.models import FinishedRequest, StoredAnswer
from mlxplatform.jobs import service as jobs
from mlxplatform.jobs.models import Job
from mlxplatform.operations import erasure
from mlxplatform.retention import policy
from mlxplatform.schedules.models import Schedule
from mlxplatform.training.models import TrainingRun
from mlxplatform.webhooks.models import Webhook
from tests.api.test_ownership import RED, signed_in

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

JSON = {"content_type": "application/json"}


@pytest.fixture(autouse=True)
def policy_is_read_anew() -> Iterator[None]:
    policy.forget()
    yield
    policy.forget()


def key_of(name: str, *scopes: str) -> tuple[Client, str]:
    key, secret = keys.create(name, project=RED, scopes=scopes or ("inference", "read", "write"))
    identity.forget()
    return Client(headers={"host": "localhost", "authorization": f"Bearer {secret}"}), f"key:{key.id}"


def answer(name: str, maker: str, days: int = 0) -> StoredAnswer:
    at = timezone.now() - timedelta(days=days)
    times = {"created_at": at, "used_at": at, "expires_at": at + timedelta(days=30)}
    return StoredAnswer.objects.create(id=name, kind="response", project=RED, created_by=maker, **times)


def work_of(maker: str, name: str) -> set[str]:
    """One of everything that somebody makes; the ids of its rows."""
    file = files.store([b"{}"], "mine.jsonl", "batch", project=RED, created_by=maker)
    schedule = Schedule.objects.create(name=name, project=RED, kind="memory_synthesis", cron="0 3 * * *", created_by=maker)
    made = [
        file,
        schedule,
        job := jobs.submit("finetune", {"model": "x"}, project=RED, created_by=maker),
        jobs.submit("finetune", {"model": "x"}, project=RED, created_by=f"schedule:{schedule.pk}"),
        jobs.submit("finetune", {"model": "x"}, project=RED, created_by="batches", parent=job),
        TrainingRun.objects.create(job=job.id, project=RED),
        Dataset.objects.create(name=name, project=RED, template="self_instruct", created_by=maker),
        Webhook.objects.create(url="https://example.com/", project=RED, created_by=maker),
        Batch.objects.create(
            id=f"batch_{name}",
            dialect="openai",
            project=RED,
            endpoint="/v1/x",
            created_by=maker,
            expires_at=timezone.now(),
            status="completed",
        ),
        answer(f"resp_{name}", maker),
    ]
    request_id = f"resp_{name}" if maker.startswith("user:") else f"req_{name}"
    key_id = "" if maker.startswith("user:") else maker.removeprefix("key:")
    done = {"path": "/v1/x", "project": RED, "model": "tiny", "outcome": "completed", "ended_at": timezone.now()}
    made.append(FinishedRequest.objects.create(id=request_id, key_id=key_id, **done))
    return {f"{type(row).__name__}:{row.pk}" for row in made}


def everything() -> set[str]:
    found = set()
    for model in apps.get_models():
        if any(field.name == "project" for field in model._meta.fields) and model not in erasure.KEPT:
            found |= {f"{model.__name__}:{pk}" for pk in model._default_manager.values_list("pk", flat=True)}
    return found


def test_every_table_of_a_project_says_who_made_its_rows_or_that_all_did() -> None:
    for model in apps.get_models():
        names = {field.name for field in model._meta.fields}
        if "project" in names and model not in erasure.KEPT:
            column = erasure.MAKERS.get(model, "created_by").removesuffix("__in")
            assert not column or column in names, model


@pytest.mark.parametrize("maker", ["key", "user:bea"])
def test_what_one_made_goes_and_what_others_made_stays(maker: str) -> None:
    own, own_name = key_of("own")
    _, other = key_of("other")
    if maker != "key":
        own, own_name = signed_in("bea", "member", RED), maker
    mine, theirs = work_of(own_name, "mine"), work_of(other, "theirs") | work_of("user:cleo", "cleos")
    blob = files.find(next(iter(pk for pk in mine if pk.startswith("StoredFile"))).partition(":")[2], RED)
    shown = own.get("/api/data?made_by=me").json()
    assert (shown["made_by"], shown["holdings"]["jobs"]) == (own_name, 3)
    assert shown["holdings"]["batches"] == 1
    token = {} if maker == "key" else {"HTTP_X_CSRFTOKEN": own.cookies["csrftoken"].value}
    gone = own.delete("/api/data", '{"project": "red", "made_by": "me"}', **JSON, **token)
    assert gone.status_code == 200, gone.content
    assert sum(gone.json()["deleted"].values()) >= len(mine) - 2, "schedules and webhooks go first"
    assert everything() & mine == set()
    assert theirs <= everything()
    assert not blobs.path_of(blob.id).exists()
    entry = AuditEntry.objects.get(action="data.erase")
    assert (entry.target, entry.actor) == (own_name, own_name)


def test_only_an_administrator_names_somebody_else() -> None:
    own, _ = key_of("own")
    boss, _ = key_of("boss", "admin")
    _, other = key_of("other")
    theirs = work_of(other, "theirs")
    order = f'{{"project": "red", "made_by": "{other}"}}'
    assert own.delete("/api/data", order, **JSON).status_code == 403
    assert own.get(f"/api/data?made_by={other}").status_code == 403
    for wrong in ("nobody", "key:", "5", "[]"):
        refused = own.delete("/api/data", f'{{"project": "red", "made_by": "{wrong}"}}', **JSON)
        assert (refused.status_code, refused.json()["field"]) == (400, "made_by"), wrong
    assert own.delete("/api/data", '{"project": "red", "made_by": ["me"]}', **JSON).status_code == 400
    assert theirs <= everything()
    assert boss.delete("/api/data", order, **JSON).status_code == 200
    assert everything() & theirs == set()


def test_a_running_job_is_stopped_first_and_the_schedule_starts_no_other() -> None:
    own, name = key_of("own")
    work_of(name, "mine")
    Job.objects.filter(created_by__startswith="schedule:").update(state="running", owner="cpu:1:x")
    refused = own.delete("/api/data", '{"project": "red", "made_by": "me"}', **JSON)
    assert (refused.status_code, refused.json()["code"]) == (409, "jobs_running")
    assert Schedule.objects.get().paused
    Job.objects.filter(state="cancelling").update(state="cancelled", ended_at=timezone.now())
    assert own.delete("/api/data", '{"project": "red", "made_by": "me"}', **JSON).status_code == 200
    assert not Job.objects.exists()
    assert not Schedule.objects.exists()


def test_a_person_deletes_the_own_work_on_the_page() -> None:
    member, boss = signed_in("bea", "member", RED), signed_in("anna", "admin", RED)
    mine, theirs = work_of("user:bea", "mine"), work_of("user:cleo", "cleos")
    assert "user:cleo" not in member.get("/console/data").content.decode()
    member.post("/console/data/erase", {"project": RED, "made_by": "user:cleo"})
    assert mine | theirs <= everything()
    member.post("/console/data/erase", {"project": RED, "made_by": "user:bea"})
    assert everything() & mine == set()
    assert theirs <= everything()
    assert "what bea made" in boss.get("/console/data").content.decode()


def test_how_long_things_are_kept_is_changed_by_administrators_and_holds_for_what_is_there() -> None:
    boss, _ = key_of("boss", "admin")
    member, _ = key_of("own")
    assert member.get("/api/retention").json()["retention"]["history_days"] == {
        "value": 30,
        "default": 30,
        "set_by": "environment",
    }
    assert member.patch("/api/retention", '{"history_days": 1}', **JSON).status_code == 403
    answer("old", "user:bea", days=8)
    answer("new", "user:bea", days=6)
    assert history.sweep() == 0
    changed = boss.patch("/api/retention", '{"history_days": 7}', **JSON).json()["retention"]
    assert changed["history_days"] == {"value": 7, "default": 30, "set_by": "administrator"}
    assert history.sweep() == 1
    assert StoredAnswer.objects.get().id == "new"
    for wrong, field in [
        ('{"history_days": 0}', "history_days"),
        ('{"history_days": 1e9}', "history_days"),
        ('{"history_mb": "9"}', "history_mb"),
        ('{"job_log_days": true}', "job_log_days"),
        ('{"history_mb": 99999999999999}', "history_mb"),
        ('{"days": 5}', "days"),
    ]:
        refused = boss.patch("/api/retention", wrong, **JSON)
        assert (refused.status_code, refused.json()["field"]) == (400, field), wrong
    assert policy.current().history_days == 7
    boss.patch("/api/retention", '{"history_days": null}', **JSON)
    assert policy.current().history_days == 30
    assert AuditEntry.objects.filter(action="retention.change").count() == 2


def test_the_page_and_the_admin_change_how_long_things_are_kept() -> None:
    boss = signed_in("anna", "admin", RED)
    boss.post("/console/data/keep", {"history_days": "9", "history_mb": "", "job_log_days": ""})
    assert policy.described()["history_days"] == {"value": 9, "default": 30, "set_by": "administrator"}
    said = boss.post("/console/data/keep", {"history_days": "nine"}, follow=True).content.decode()
    assert "Nothing was changed: history_days must be a whole number" in said
    form: dict[str, Any] = {"history_days": "11", "history_mb": "", "job_log_days": "400"}
    assert boss.post("/admin/retention/retention/1/change/", form).status_code == 302
    assert (policy.current().history_days, policy.current().job_log_days) == (11, 400)
    assert AuditEntry.objects.filter(action="retention.change", actor="user:anna").count() == 2
    assert signed_in("bea", "member", RED).post("/console/data/keep", {"history_days": "1"}).status_code == 403
