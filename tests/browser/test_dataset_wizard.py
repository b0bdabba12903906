"""The dataset wizard in a real browser: from the form through the preview to the download, with a real model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.system.stack import Stack

pytestmark = pytest.mark.stack

#: What a page may take to show what its job does, on a busy machine.
PATIENCE_MS = 60_000
SOURCES = 14
ROWS = "\n".join(json.dumps({"place": f"place {n}"}) for n in range(SOURCES)) + '\n{"place": NaN}'


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    expect.set_options(timeout=PATIENCE_MS)
    yield
    expect.set_options(timeout=None)


def test_from_the_form_over_the_preview_to_the_download(page: Page, stack: Stack, tmp_path: Path) -> None:
    page.goto("/console/datasets/new")
    page.get_by_role("link", name="Your own prompt").click()
    page.get_by_label("Name", exact=True).fill("capitals")
    page.get_by_label("Rows as JSON Lines").fill(ROWS)
    page.get_by_label("Prompt (needed)").fill("What is the capital of {{ place }}?")
    page.get_by_label("Seed").fill("7")
    page.locator("summary", has_text="Filters").click()
    page.get_by_label("Shortest row, characters").fill("9")
    page.get_by_label("Personal data").select_option("flag")
    page.get_by_label("Answers that go round").select_option("keep")
    page.get_by_role("button", name="Preview ten rows").click()

    # The page fills itself: forecast, rows, and for every row what was asked and said.
    forecast = page.locator("#forecast")
    expect(forecast).to_contain_text(re.compile(rf"Sources\s*{SOURCES}"))
    expect(forecast).to_contain_text(re.compile(r"Model calls\s*14"))
    expect(forecast).to_contain_text("written")
    cards = page.locator("#preview-state > .card:not(#forecast)")
    expect(cards.filter(has_text="not_json")).to_have_count(1)
    made = cards.filter(has_not_text="not_json")
    expect(made).to_have_count(10)
    made.first.locator("summary").click()
    expect(made.first).to_contain_text("What is the capital of place 0?")
    assert stack.http.get("/api/datasets?q=capitals").json()["datasets"] == [], "a preview is no dataset"

    page.get_by_role("button", name="Run all of it").click()
    expect(page.locator("#dataset-state .state")).to_have_text("ready")
    expect(page.locator("#dataset-forecast")).to_contain_text(re.compile(r"Model calls\s*14\s*14"))
    expect(page.locator("#dataset-lengths progress").first).to_be_visible()
    expect(page.locator("#dataset-rows")).to_contain_text("What is the capital of place 13?")
    shown = page.locator("#dataset-rows tbody tr")
    before = shown.count()

    with page.expect_download() as download:
        page.get_by_role("link", name="train.jsonl").click()
    target = tmp_path / "train.jsonl"
    download.value.save_as(target)
    raw = target.read_bytes()
    expect(page.locator("#dataset-state")).to_contain_text(hashlib.sha256(raw).hexdigest())
    rows = [json.loads(line) for line in raw.decode().split("\n") if line]
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant"]
    [dataset] = stack.http.get("/api/datasets?q=capitals").json()["datasets"]
    assert len(rows) == dataset["latest"]["counts"]["train"]

    # The sample browser: by verdict, by reason, by words. Its choices are of the moment the page was opened.
    page.reload()
    page.get_by_label("Verdict").select_option("dropped")
    page.get_by_label("Reason").select_option("not_json")
    page.get_by_role("button", name="Filter").click()
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("NaN is not JSON")
    page.get_by_label("Verdict").select_option("")
    page.get_by_label("Reason").select_option("")
    page.get_by_label("Contains").fill("capital of place 3?")
    page.get_by_role("button", name="Filter").click()
    expect(shown).to_have_count(1)
    assert before == SOURCES + 1


def test_a_run_is_watched_while_it_goes_on(page: Page, stack: Stack) -> None:
    """Counts by reason, rate and time left come while the rows are made, and the rows with them."""
    order = {
        "template": "column_prompts",
        "name": "watched",
        "inputs": {
            "rows": "\n".join(json.dumps({"n": n}) for n in range(3000)) + '\n{"n": NaN}',
            "prompt_template": "Tell me a long story about number {{ n }}.",
        },
        "filters": {"distinct": False},
    }
    made = stack.http.post("/api/dataset/submit", json=order).json()
    page.goto(f"/console/datasets/{made['dataset_id']}")
    progress = page.locator("#dataset-progress")
    expect(progress).to_contain_text(re.compile(r"Accepted\s*[1-9]"))
    expect(progress).to_contain_text("not_json 1")
    expect(page.locator("#reason option", has_text="not_json")).to_have_count(1)
    expect(progress).to_contain_text("rows/s")
    expect(progress).to_contain_text(re.compile(r"about \d+ s"))
    expect(page.locator("#dataset-lengths progress").first).to_be_visible()
    expect(page.locator("#sample-rows")).to_contain_text("Tell me a long story about number")
    stack.http.post(f"/api/jobs/{made['job_id']}/cancel")
    expect(page.locator("#dataset-state .state")).to_have_text("cancelled")
    expect(page.locator("#sample-rows")).to_contain_text("Tell me a long story about number")


def test_a_filter_that_cannot_be_used_is_named(page: Page) -> None:
    page.goto("/console/datasets/new?template=sft_qa_pairs")
    page.locator("#pairs_text").fill("Q: a?\nA: b")
    page.locator("summary", has_text="Filters").click()
    page.get_by_label("Drop near duplicates").fill("often")
    page.get_by_role("button", name="Make dataset").click()
    expect(page.get_by_role("alert")).to_contain_text("near_duplicates")
    expect(page.get_by_label("Drop near duplicates")).to_have_value("often")
