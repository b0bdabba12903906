"""Training, quantizing and the library as a person uses them, in a real browser against the running platform."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import accessible
from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

#: Milliseconds a short job of the tiny model may take on a busy machine.
PATIENCE = 240_000


def test_the_wizard_checks_data_trains_and_the_curve_survives_a_reload(page: Page, dataset: str) -> None:
    page.goto(f"/console/models/finetune?model=tiny&dataset={dataset}")
    chosen = page.get_by_label("Dataset").locator("option:checked")
    expect(chosen).to_have_text("codes, version 1: 18 rows to learn, 2 to validate")
    page.get_by_label("Iters", exact=True).fill("60")
    page.get_by_text("More settings").click()
    page.get_by_label("Target modules").fill("q_proj, v_proj")
    page.get_by_label("Steps per save").fill("20")
    page.get_by_label("Steps per report").fill("5")
    page.get_by_label("Steps per eval").fill("20")
    page.get_by_role("button", name="Check the data first").click()
    expect(page.locator("#checked")).to_contain_text("18 (messages)")
    expect(page.locator("#checked")).to_contain_text("2")
    expect(page.get_by_label("Iters", exact=True)).to_have_value("60")
    page.get_by_role("button", name="Start training").click()
    page.wait_for_url(re.compile("/console/jobs/job_"))
    expect(page.locator("#chart canvas")).to_be_visible(timeout=PATIENCE)
    page.reload()
    expect(page.locator("#chart canvas")).to_be_visible()
    expect(page.locator("#job-state .state")).to_have_text("done", timeout=PATIENCE)
    page.reload()
    expect(page.locator("#chart canvas")).to_be_visible()
    expect(page.locator("#chart .u-legend")).to_contain_text("validation loss")
    expect(page.locator("#outcome")).to_contain_text("60 of 60")
    expect(page.locator("#outcome")).to_contain_text("Validation loss, last")
    expect(page.get_by_text('"trained_tokens"')).to_be_hidden()  # the raw result is folded away
    page.get_by_role("link", name="What it made").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("ft:tiny:local:")
    expect(page.locator("[data-chart=curve-data] canvas")).to_be_visible()
    accessible(page)
    page.get_by_text("Evaluate", exact=True).first.click()
    page.get_by_label("exact_match").uncheck()
    page.locator("#evaluated-step").select_option("40")
    page.get_by_role("button", name="Evaluate").click()
    page.wait_for_url(re.compile("/console/jobs/job_"))
    expect(page.locator("#job-state .state")).to_have_text("done", timeout=PATIENCE)
    page.reload()
    expect(page.locator("#outcome")).to_contain_text(":ckpt-step-40")
    page.get_by_role("link", name="Evaluation").click()
    expect(page.get_by_role("row", name=re.compile("^40 ft:tiny")).get_by_role("cell").nth(3)).to_have_text(re.compile(r"^\d"))


def test_a_mistake_below_more_settings_is_shown_where_it_is(page: Page, dataset: str) -> None:
    page.goto(f"/console/models/finetune?model=tiny&dataset={dataset}")
    page.get_by_text("More settings").click()
    page.get_by_label("Rank", exact=True).fill("0")
    page.get_by_role("button", name="Start training").click()
    expect(page.get_by_role("alert")).to_contain_text("rank")
    expect(page.get_by_label("Rank", exact=True)).to_be_visible()
    expect(page.get_by_label("Rank", exact=True)).to_have_value("0")


def test_quantizing_ends_in_a_report_and_a_comparison(page: Page) -> None:
    for bits in ("8", "3"):
        page.goto("/console/models/quantize?model=tiny")
        page.get_by_label("Bits", exact=True).fill(bits)
        page.get_by_label("Output").fill(f"tiny-browser-{bits}")
        page.get_by_role("button", name="Quantize").click()
        page.wait_for_url(re.compile("/console/jobs/job_"))
        expect(page.locator("#job-state .state")).to_have_text("done", timeout=PATIENCE)
    page.reload()
    expect(page.locator("#outcome")).to_contain_text("KL divergence, mean")
    expect(page.locator("#outcome").get_by_role("link", name="tiny-browser-3")).to_be_visible()
    page.get_by_role("link", name="Quality report").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("tiny-browser-3")
    expect(page.locator("[data-chart=kl-data] canvas")).to_be_visible()
    expect(page.get_by_text("not measured here").first).to_be_visible()
    accessible(page)
    page.get_by_role("link", name="Compare with others").click()
    expect(page.locator("[data-chart=pareto-data] canvas")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("tiny-browser-8"))).to_contain_text("best of its size")
    accessible(page)


def test_a_blind_vote_hides_the_names_until_it_is_cast(page: Page, stack: Stack, adapter: dict[str, Any]) -> None:
    eventually(lambda: adapter["name"] in {m["id"] for m in stack.http.get("/v1/models").json()["data"]}, what="the name served")
    page.goto(f"/console/models/adapters/{adapter['adapter']}")
    page.get_by_role("link", name="Compare with its base").click()
    expect(page.locator("#model")).to_have_value(adapter["name"])
    expect(page.locator("#second")).to_have_value("tiny")
    expect(page.get_by_label(re.compile("Blind"))).to_be_checked()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer, tokens").fill("12")
    page.get_by_placeholder("Message").fill("code 3?")
    page.keyboard.press("Enter")
    better = page.get_by_role("button", name="A is better")
    expect(better).to_be_visible(timeout=60_000)
    assert adapter["name"] not in page.locator("#thread").inner_text()
    better.click()
    expect(page.locator(".ballot")).to_contain_text("So far:")
    expect(page.locator("#thread")).to_contain_text(adapter["name"])
    (pair,) = stack.http.get("/api/comparisons", params={"model": adapter["name"]}).json()["pairs"]
    assert sorted(pair["wins"]) == [0, 1] and pair["models"] == sorted([adapter["name"], "tiny"])


def test_a_preset_is_kept_on_the_models_page_and_a_wrong_one_is_named(page: Page, stack: Stack) -> None:
    page.goto("/console/models/one?model=tiny")
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("Thinking").select_option("false")
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("status").first).to_contain_text("Kept")
    expect(page.get_by_label("Temperature")).to_have_value("0.25")
    assert stack.http.get("/api/library/tiny/preset").json()["preset"] == {"temperature": 0.25, "thinking": False}
    page.get_by_label("Context").fill("99999")
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("alert")).to_contain_text("context must be at most 2048")
    accessible(page)
    stack.http.delete("/api/library/tiny/preset")


def test_runs_are_compared_in_one_chart(page: Page, adapter: dict[str, Any], dataset: str, stack: Stack) -> None:
    page.goto("/console/models/runs")
    expect(page.get_by_role("cell", name="codes, version 1").first).to_be_visible()
    chosen = [box.get_attribute("value") for box in page.get_by_role("checkbox").all()[:2]]
    for run in chosen:
        page.get_by_label(str(run)).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("[data-chart=runs-data] canvas")).to_be_visible()
    for run in chosen:
        expect(page.locator("[data-chart=runs-data] .u-legend")).to_contain_text(f"{run} train")
        ends = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(run)))
        expect(ends.get_by_role("cell").nth(2)).to_have_text(re.compile(r"^\d+\.\d{4}$"))
    expect(page.get_by_role("cell", name="suffix")).to_be_visible()
    expect(page.get_by_role("cell", name="data", exact=True)).to_have_count(0)  # both learned from the same
    accessible(page)
