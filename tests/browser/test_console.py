"""The console as a person uses it, in a real browser against the running platform."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from mlxplatform.console.navigation import SECTIONS
from tests.browser.accessibility import accessible_in_both, fits_a_phone, shows_the_focus
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

PAIRS = "\n\n".join(f"Q: What is {n} plus {n}?\nA: {n} plus {n} is {2 * n}." for n in range(1, 12))
EVIL = "<img src=x onerror=alert(1)></pre><script>alert(1)</script>"


def test_nobody_sees_a_page_without_signing_in(browser: Browser, stack: Stack) -> None:
    page = browser.new_context(base_url=stack.base_url).new_page()
    for path in ("/", "/console/jobs", "/console/keys"):
        page.goto(path)
        assert "/login/" in page.url


def test_a_dataset_is_made_watched_and_downloaded(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    page.get_by_role("link", name="New dataset").click()
    page.locator("a[href='?template=sft_qa_pairs']").click()
    page.locator("#pairs_text").fill(PAIRS)
    page.get_by_role("button", name="Make dataset").click()
    expect(page.locator("#dataset-state .state")).to_have_text("ready", timeout=60_000)
    page.reload()
    with page.expect_download() as download:
        page.get_by_role("link", name="train.jsonl").click()
    target = tmp_path / "train.jsonl"
    download.value.save_as(target)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert rows[0]["messages"][-1] == {"role": "assistant", "content": "1 plus 1 is 2."}
    expect(page.locator("#sample-rows")).to_contain_text("1 plus 1 is 2.")
    expect(page.locator("#sample-rows tbody td:first-child").first).to_have_text("1")


def test_a_mistake_in_the_wizard_is_named_and_nothing_typed_is_lost(page: Page, stack: Stack) -> None:
    page.goto("/console/datasets/new?template=self_instruct")
    page.locator("#run_name").fill("mine")
    page.locator("#seeds").fill("Name a tree.")
    page.locator("#run_seed").fill("99999999999")
    before = stack.http.get("/api/datasets").json()["datasets"]
    page.get_by_role("button", name="Make dataset").click()
    expect(page.get_by_role("alert")).to_contain_text("seed")
    expect(page.locator("#run_name")).to_have_value("mine")
    expect(page.locator("#seeds")).to_have_value("Name a tree.")
    assert stack.http.get("/api/datasets").json()["datasets"] == before


def test_an_answer_streams_into_the_playground(page: Page) -> None:
    page.goto("/console/chat")
    expect(page.locator("#model option")).not_to_have_count(0)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer, tokens").fill("16")
    page.get_by_placeholder("Message").fill("What is the capital of Japan?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.assistant .body")).to_contain_text("Tokyo")
    expect(page.locator("#status")).to_contain_text("tokens")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".turn.assistant .body")).to_contain_text("Tokyo")
    expect(page.locator(".turn.assistant .foot")).to_contain_text("per second")


def test_a_question_asked_before_the_models_are_known_is_answered_or_given_back(page: Page, stack: Stack) -> None:
    held: list[Route] = []
    page.route("**/v1/models", lambda route: held.append(route))  # Playwright marks its handlers: a built-in one takes no mark
    page.goto("/console/chat")
    page.get_by_placeholder("Message").fill("What is the capital of Japan?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.user")).to_have_count(1)
    held[0].continue_()
    expect(page.locator(".turn.assistant .body").last).not_to_be_empty()
    page.unroute("**/v1/models")
    page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": []}))
    page.goto("/console/chat")
    page.get_by_placeholder("Message").fill("Anybody?")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("no model to chat with")
    expect(page.get_by_placeholder("Message")).to_have_value("Anybody?")


def test_a_form_outlives_the_end_of_the_session_and_is_sent_once(page: Page, stack: Stack) -> None:
    page.goto("/console/schedules")
    page.get_by_label("Name").fill("nightly 🌙 عربي")
    page.get_by_label("When").fill("0 4 * * *")
    page.get_by_label("Configuration").fill('{"no_such_field": 1}')
    cookies = page.context.cookies()
    page.context.clear_cookies(name="sessionid")
    page.get_by_role("button", name="Plan it").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.context.add_cookies(cookies)  # signed in again, without spending a password
    page.goto("/console/schedules", referer=stack.base_url + "/login/")
    expect(page.get_by_label("Name")).to_have_value("nightly 🌙 عربي")
    expect(page.get_by_label("When")).to_have_value("0 4 * * *")
    sent = []
    page.on("request", lambda asked: sent.append(asked.url) if asked.method == "POST" else None)
    page.get_by_role("button", name="Plan it").dblclick()
    expect(page.get_by_role("alert")).to_contain_text("no_such_field")
    assert len(sent) == 1


def test_a_conversation_is_found_again_continued_and_forgotten(page: Page) -> None:
    page.goto("/console/chat")
    expect(page.locator("#model option")).not_to_have_count(0)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer, tokens").fill("16")
    page.get_by_placeholder("Message").fill("What is the capital of Italy?")
    page.keyboard.press("Enter")
    entry = page.locator("#history").get_by_role("button", name="What is the capital of Italy?", exact=True)
    expect(entry).to_be_visible()
    page.goto("/console/jobs")
    page.go_back()
    expect(page.locator(".turn.assistant .body")).not_to_be_empty()
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    page.reload()
    expect(page.locator(".turn")).to_have_count(0)
    entry.click()
    expect(page.locator(".turn.user .body")).to_have_text("What is the capital of Italy?")
    expect(page.locator(".turn.assistant .body")).not_to_be_empty()
    page.reload()
    expect(page.locator(".turn.assistant .body")).not_to_be_empty()
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_placeholder("Message")).to_have_value("What is the capital of Italy?")
    page.get_by_role("button", name="Forget What is the capital of Italy?").click()
    expect(entry).to_have_count(0)


def test_two_models_answer_side_by_side_and_one_goes_on(page: Page) -> None:
    page.goto("/console/chat")
    expect(page.locator("#second option")).not_to_have_count(1)
    page.get_by_label("Compare with").select_option(index=1)
    page.get_by_label("Longest answer, tokens").fill("8")
    page.get_by_label("Attach").set_input_files({"name": "n.txt", "mimeType": "text/plain", "buffer": b"<b>seven</b>"})
    expect(page.locator("#attached")).to_have_text("n.txt")
    page.get_by_placeholder("Message").fill("Compare.")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.user .body")).to_contain_text("<b>seven</b>")
    expect(page.locator(".compare .turn .foot")).to_have_count(2)
    expect(page.locator(".compare .turn .foot").nth(1)).to_contain_text("tokens")
    page.get_by_role("button", name="Go on with this").nth(1).click()
    expect(page.locator(".turn.assistant")).to_have_count(1)


def test_a_long_answer_can_be_stopped(page: Page, stack: Stack) -> None:
    page.goto("/console/chat")
    expect(page.locator("#model option")).not_to_have_count(0)
    # The schema keeps a model that would stop by itself at work.
    page.get_by_text("Seed, structure, tools").click()
    page.get_by_label("Answer as JSON Schema").fill('{"type": "array", "items": {"type": "integer"}, "minItems": 900}')
    page.get_by_label("Longest answer, tokens").fill("1900")
    page.get_by_placeholder("Message").fill("Count for ever.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_placeholder("Message").fill("Again.")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_placeholder("Message")).to_be_focused()


def test_markup_in_what_people_typed_is_shown_as_text(page: Page, stack: Stack) -> None:
    made = stack.http.post(
        "/api/dataset/submit",
        json={"template_id": "sft_qa_pairs", "name": EVIL, "inputs": {"pairs_text": f"Q: {EVIL}\nA: {EVIL}\n\nQ: a\nA: b"}},
    ).json()
    page.goto(f"/console/datasets/{made['dataset_id']}")
    expect(page.locator("#dataset-state .state")).to_have_text(re.compile("ready|failed"))
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text(EVIL)
    for path in ("/console/datasets", "/console/jobs", f"/console/jobs/{made['job_id']}"):
        page.goto(path)
        assert page.locator("main script, main img").count() == 0
    expect(page.locator("#log")).to_contain_text("done")


@pytest.mark.parametrize("route", [link.route for section in SECTIONS for link in section.links if link.route != "admin:index"])
def test_every_page_is_accessible_and_fits_a_phone(page: Page, stack: Stack, route: str) -> None:
    from django.urls import reverse

    page.goto(reverse(route))
    accessible_in_both(page)
    fits_a_phone(page)


def test_the_keyboard_reaches_everything_and_is_seen(page: Page) -> None:
    page.set_viewport_size({"width": 375, "height": 700})
    page.goto("/console/schedules")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('content').contains(document.activeElement)")
    menu = page.locator("details.menu")
    page.locator("details.menu > summary").focus()
    page.keyboard.press("Enter")
    expect(menu).to_have_attribute("open", "")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", "")
    expect(page.locator("details.menu > summary")).to_be_focused()
    assert shows_the_focus(page) > 3
