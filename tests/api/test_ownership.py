"""Pages and projects: a signed-in member sees and touches the own project's work only; an administrator all of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from mlxplatform.accounts import people
from mlxplatform.accounts.models import ApiKey, UsageDay
from mlxplatform.accounts.scopes import ROLES, grants
from mlxplatform.batches.models import Batch
from mlxplatform.console.navigation import SECTIONS
from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.files import service as files
from mlxplatform.files.models import StoredFile
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.memory.models import Change, Run, Vault
from mlxplatform.schedules.models import Firing, Schedule
from mlxplatform.training.models import Adapter, QualityReport

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

RED, BLUE = "red", "blue"
FIGURES = {"model": "secret", "quality": {"perplexity": 9.5, "kl": {"mean": 0.1}, "same_top": 0.9}}


def signed_in(name: str, role: str, project: str) -> Client:
    """A browser of a new person."""
    password = people.add(name, role, project, actor="test")
    browser = Client(headers={"host": "localhost"})
    answer = browser.post("/login/", {"username": name, "password": password})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    return browser


class Belongings:
    """One of everything that belongs to a project, each named so that it is recognised on a page."""

    def __init__(self, project: str) -> None:
        self.project, self.mark = project, f"secret-of-{project}"
        self.job = service.submit("finetune", {"model": self.mark, "data": {}}, project=project)
        Job.objects.filter(pk=self.job.pk).update(message=self.mark)
        self.failed = service.submit("finetune", {"model": "x"}, project=project)
        Job.objects.filter(pk=self.failed.pk).update(state="failed", error=self.mark, ended_at=timezone.now())
        self.file = files.store([b"{}"], f"{self.mark}.jsonl", "batch", project=project, created_by="test")
        self.batch = Batch.objects.create(
            id=f"batch_{project}",
            dialect="openai",
            project=project,
            endpoint="/v1/completions",
            input_file_name=self.mark,
            expires_at=timezone.now(),
        )
        self.dataset = Dataset.objects.create(name=self.mark, project=project, template="self_instruct")
        self.version = DatasetVersion.objects.create(dataset=self.dataset, number=1, job=self.job.id)
        self.adapter = Adapter.objects.create(id=f"ad_{project}", name=f"ft:{self.mark}", project=project)
        QualityReport.objects.create(
            job=self.job.id, model=self.mark, project=project, bytes=1, bits_per_weight=4.5, figures=FIGURES
        )
        self.vault = Vault.objects.create(name=f"v-{project}", project=project)
        self.run = Run.objects.create(pk=f"run_{project}", vault=self.vault)
        self.change = Change.objects.create(
            pk=f"chg_{project}", vault=self.vault, summary=self.mark, state="proposed", edit={}, stem="Page"
        )
        self.schedule = Schedule.objects.create(name=self.mark, project=project, kind="memory_synthesis", cron="0 3 * * *")
        Firing.objects.create(schedule=self.schedule, due_at=timezone.now(), outcome="started")
        UsageDay.objects.create(day=timezone.now().date(), project=project, model=self.mark, requests=1)

    def pages(self) -> list[str]:
        """Pages of single things."""
        return [
            f"/console/jobs/{self.job.id}",
            f"/console/datasets/{self.dataset.id}",
            f"/console/memory/changes/{self.change.pk}",
            f"/console/memory/runs/{self.run.pk}",
            f"/console/memory/pages/{self.vault.pk}/Page",
            f"/console/memory/settings/{self.vault.pk}",
        ]


LISTS = [
    "/",
    "/console/jobs",
    "/console/datasets",
    "/console/batches",
    "/console/files",
    "/console/models",
    "/console/models/finetune",
    "/console/memory",
    "/console/schedules",
    "/console/usage",
]


@pytest.fixture
def red() -> Belongings:
    return Belongings(RED)


def test_lists_show_the_own_project_only(red: Belongings) -> None:
    blue = Belongings(BLUE)
    member = signed_in("bea", "member", BLUE)
    boss = signed_in("anna", "admin", BLUE)
    shown_to_boss = ""
    for path in LISTS:
        page = member.get(path)
        assert page.status_code == 200, path
        assert red.mark not in page.content.decode(), path
        assert red.job.id not in page.content.decode(), path
        shown_to_boss += boss.get(path).content.decode()
    for belongings in (red, blue):
        assert belongings.mark in shown_to_boss
        assert belongings.job.id in shown_to_boss
    assert blue.mark in member.get("/console/files").content.decode()


def test_anothers_thing_is_as_unknown_as_none(red: Belongings) -> None:
    member = signed_in("bea", "member", BLUE)
    boss = signed_in("anna", "admin", BLUE)
    for path in red.pages():
        theirs, none = (
            member.get(path),
            member.get(path.replace(RED, "nope").replace(red.job.id, "job_0").replace(red.dataset.id, "ds_0")),
        )
        assert (theirs.status_code, none.status_code) == (404, 404), path
    assert boss.get(red.pages()[0]).status_code == 200


def test_anothers_thing_cannot_be_touched(red: Belongings) -> None:
    member = signed_in("bea", "member", BLUE)
    for path, form in {
        "/console/jobs/action": {"action": "cancel", "job": red.job.id},
        "/console/files/delete": {"file": red.file.id},
        "/console/batches/cancel": {"batch": red.batch.id},
        "/console/schedules/action": {"action": "delete", "schedule": red.schedule.id},
        f"/console/memory/changes/{red.change.pk}/action": {"action": "reject"},
        "/console/memory/action": {"action": "synthesize", "vault": red.vault.pk},
    }.items():
        member.post(path, form)
    assert Job.objects.get(pk=red.job.pk).state == "queued"
    assert StoredFile.objects.get(pk=red.file.pk).deleted_at is None
    assert Batch.objects.get(pk=red.batch.pk).status == red.batch.status
    assert Schedule.objects.filter(pk=red.schedule.pk).exists()
    assert Change.objects.get(pk=red.change.pk).state == "proposed"
    assert Job.objects.filter(kind="memory_synthesis").count() == 0


def test_what_a_member_makes_belongs_to_their_project(red: Belongings) -> None:
    member = signed_in("bea", "member", BLUE)
    member.post("/console/memory/action", {"action": "init"})
    form = {
        "name": "nightly",
        "kind": "memory_synthesis",
        "cron": "0 4 * * *",
        "misfire": Schedule.MISFIRES[0][0],
        "config": "{}",
    }
    answer = member.post("/console/schedules/new", form)
    assert answer.status_code == 302, answer.content.decode()
    member.post(
        "/console/datasets/new?template=sft_qa_pairs",
        {"pairs_text": "Q: a\nA: b\n\nQ: c\nA: d", "run_name": "mine", "run": "full"},
    )
    assert Vault.objects.get(project=BLUE).name == "wiki"
    assert Schedule.objects.get(name="nightly").project == BLUE
    dataset = Dataset.objects.get(name="mine")
    assert (dataset.project, dataset.created_by) == (BLUE, "user:bea")


def test_the_api_gives_a_session_the_same_sight(red: Belongings) -> None:
    member = signed_in("bea", "member", BLUE)
    assert member.get("/api/jobs").json()["jobs"] == []
    assert member.get(f"/api/jobs/{red.job.id}").status_code == 404
    assert member.get(f"/v1/files/{red.file.id}").status_code == 404
    theirs = f"/console/datasets/{red.dataset.id}"
    assert member.get(f"{theirs}/changes").status_code == 404
    assert member.post(f"{theirs}/change", {"name": "mine"}).status_code == 404
    boss = signed_in("anna", "admin", BLUE)
    assert boss.get(f"/api/jobs/{red.job.id}").status_code == 200
    assert boss.get(f"/v1/files/{red.file.id}").status_code == 200


@pytest.mark.parametrize("role", ROLES)
def test_every_role_reaches_exactly_what_its_navigation_shows(role: str) -> None:
    from django.urls import reverse

    browser = signed_in("somebody", role, BLUE)
    home = browser.get("/").content.decode()
    for section in SECTIONS:
        for link in section.links:
            url = reverse(link.route)
            allowed = grants(ROLES[role], link.scope)
            assert (f'href="{url}"' in home) == allowed or url == "/", link.label
            status = browser.get(url).status_code
            # The admin sends those it does not know to the sign-in page instead of answering 403.
            assert status == 200 if allowed else status in {302, 403}, link.label


def test_a_viewer_changes_nothing() -> None:
    mine = Belongings(BLUE)
    viewer = signed_in("vic", "viewer", BLUE)
    answers: dict[str, Any] = {
        path: viewer.post(path, form).status_code
        for path, form in {
            "/console/jobs/action": {"action": "cancel", "job": mine.job.id},
            "/console/files/delete": {"file": mine.file.id},
            "/console/schedules/action": {"action": "delete", "schedule": mine.schedule.id},
            "/console/keys/action": {"action": "create", "name": "k", "scopes": "admin"},
            "/console/people/action": {"action": "add", "name": "eve", "role": "admin"},
        }.items()
    }
    assert set(answers.values()) == {403}
    assert not ApiKey.objects.exists()
    assert Job.objects.get(pk=mine.job.pk).state == "queued"
