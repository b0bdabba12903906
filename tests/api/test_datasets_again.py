"""The next version of a dataset, over the API and in the console: only what changed is asked again."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client

from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.jobs.models import Job
from tests.fixtures.dataset_api import finished, order, pairs, run_jobs
from tests.fixtures.scripted_host import ScriptedRuntime, runtime

__all__ = ["runtime"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

INPUTS = {"prompts": "Name a river\nName a lake", "answers": 2, "min_gap": 1, "rubric": "short"}


class Form(HTMLParser):
    """The controls of the page's form with their values, sent as a browser sends them: line ends as CRLF."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self._area = self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "input" and name and given.get("type") not in ("hidden", "checkbox"):
            self.values[name] = given.get("value") or ""
        elif tag == "textarea":
            self._area, self.values[name] = name, ""
        elif tag == "select":
            self._select, self.values[name] = name, ""
        elif tag == "option" and self._select and "selected" in given:
            self.values[self._select] = "<next>"

    def handle_data(self, data: str) -> None:
        if self._area:
            self.values[self._area] += data
        elif self._select and self.values[self._select] == "<next>":
            self.values[self._select] = data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            # A line end right after the tag is the page's own.
            text = self.values[self._area].removeprefix("\n")
            self.values[self._area] = text.replace("\n", "\r\n")
            self._area = ""
        elif tag == "select":
            self._select = ""


def graded(runtime: ScriptedRuntime) -> Any:
    """A model whose answers have a length by their seed, and its grades by that; what it was asked, as (answers, grades)."""

    def say(request: Any) -> str:
        if "grade" in (request.messages[0].content or ""):
            return str(len(request.messages[-1].content or "") % 10 + 1)
        return "an answer of " + "x" * (request.sampling.seed % 10)

    runtime.say = say

    def asked() -> tuple[int, int]:
        grades = sum(number for text, number in runtime.started.items() if text.startswith("Request:"))
        return runtime.started.total() - grades, grades

    return asked


def test_what_an_order_does_not_say_is_as_it_was(client: Client, runtime: ScriptedRuntime) -> None:
    asked = graded(runtime)
    options = {"temperature": 0.3, "top_p": 0.8, "seed": 5, "filters": {"min_chars": 3, "refusals": False}, "rows": 2}
    _, first = finished(client, "preference_pairs", INPUTS, **options)
    before = asked()
    answer = order(client, "preference_pairs", None, resume=first.dataset_id)
    run_jobs()
    second = DatasetVersion.objects.get(job=answer["job_id"])
    assert asked() == before and second.state == "ready"
    same = ("rows", "seed", "temperature", "top_p", "filters")
    assert {name: second.options[name] for name in same} == {name: first.options[name] for name in same}
    order(client, "preference_pairs", None, resume=first.dataset_id, filters={}, rows=None)
    run_jobs()
    third = first.dataset.versions.get(number=3)
    assert asked() == before and "rows" not in third.options and not third.options.get("filters")


def test_the_console_makes_the_next_version_from_the_last_ones_form(admin_client: Client, runtime: ScriptedRuntime) -> None:
    asked = graded(runtime)
    filters = {
        "min_chars": 3,
        "refusals": False,
        "pii": "flag",
        "languages": ["en", "de"],
        "complete": True,
        "near_duplicates": 0.9,
    }
    _, first = finished(admin_client, "preference_pairs", INPUTS, seed=5, temperature=0.4, filters=filters, name="set")
    assert asked() == (4, 4)
    page = admin_client.get(f"/console/datasets/{first.dataset_id}").content.decode()
    address = f"/console/datasets/new?template=preference_pairs&resume={first.dataset_id}"
    assert address.replace("&", "&amp;") in page
    form = Form(admin_client.get(address).content.decode()).values
    assert (
        form["prompts"] == "Name a river\r\nName a lake" and form["filter_near_duplicates"] == "0.9" and form["run_seed"] == "5"
    )

    made = admin_client.post(address, {**form, "run": "all"})
    assert made.status_code == 302 and first.dataset_id in made["Location"], made.content
    run_jobs()
    assert asked() == (4, 4), "nothing was changed"
    second = first.dataset.versions.get(number=2)
    assert second.inputs == first.inputs
    assert {**second.options, "ancestors": []} == {**first.options, "ancestors": []}

    admin_client.post(address, {**form, "rubric": "long", "filter_pii": "off", "run": "all"})
    run_jobs()
    assert asked() == (4, 8), "the answers are not made again"
    third = first.dataset.versions.get(number=3)
    assert third.inputs["rubric"] == "long" and third.options["filters"] == {
        name: value for name, value in filters.items() if name != "pii"
    }


def test_a_preview_of_the_next_version_ends_in_it(admin_client: Client, runtime: ScriptedRuntime) -> None:
    asked = graded(runtime)
    _, first = finished(admin_client, "preference_pairs", INPUTS, seed=5, name="set")
    address = f"/console/datasets/new?template=preference_pairs&resume={first.dataset_id}"
    form = Form(admin_client.get(address).content.decode()).values
    answer = admin_client.post(address, {**form, "rubric": "long", "run": "preview"})
    run_jobs()
    assert asked() == (4, 8)
    made = admin_client.post(answer["Location"])
    run_jobs()
    assert first.dataset_id in made["Location"] and asked() == (4, 8)
    assert [version.number for version in first.dataset.versions.filter(state="ready").order_by("number")] == [1, 2]
    assert Dataset.objects.filter(preview=False).count() == 1
    # Twice at once: the second is told so.
    order(admin_client, "preference_pairs", None, resume=first.dataset_id)
    shown = admin_client.post(answer["Location"], follow=True)
    assert shown.status_code == 200 and "a version of this dataset is being made" in shown.content.decode()


def test_only_a_dataset_of_that_template_is_continued(admin_client: Client) -> None:
    _, version = finished(admin_client, "sft_qa_pairs", pairs(2))
    for query in (f"template=cot_synthesis&resume={version.dataset_id}", "template=sft_qa_pairs&resume=ds_x"):
        assert admin_client.get(f"/console/datasets/new?{query}").status_code == 404
    Dataset.objects.update(project="other")
    address = f"/console/datasets/new?template=sft_qa_pairs&resume={version.dataset_id}"
    assert admin_client.get(address).status_code == 404
    assert "resume=" not in admin_client.get(f"/console/datasets/{version.dataset_id}").content.decode()
    assert Job.objects.count() == 1
