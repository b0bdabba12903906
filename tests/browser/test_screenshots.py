"""The pictures of the guide: a platform with a little work on it, seen at desktop and phone width, light and dark.

``make screenshots`` writes them; a drill takes the same walk, so that the walk stays possible.
"""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import Page, expect

from tests.system.stack import ROOT, Stack

pytestmark = [pytest.mark.stack, pytest.mark.drill]

FOLDER = ROOT / "docs" / "guide" / "images"
PAIRS = "\n\n".join(
    f"Q: {question}\nA: {answer}"
    for question, answer in {
        "How often should I descale the espresso machine?": "Every two months with hard water, twice a year with soft.",
        "What does the blinking orange lamp mean?": "The water tank is empty or not pushed in all the way.",
        "Can I use distilled water?": "Mix it half and half with tap water; the sensor needs minerals.",
        "How do I reset the grinder?": "Hold both arrows for five seconds until the display shows 0.",
        "Why is the first cup lukewarm?": "Cups take the heat. Rinse the first cup with hot water.",
        "Where is the serial number?": "Under the drip tray, on the silver plate.",
    }.items()
)


def shoot(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    if os.environ.get("WRITE_DOCS"):
        FOLDER.mkdir(exist_ok=True)
        page.screenshot(path=FOLDER / f"{name}.png")


def test_the_walk_of_the_pictures(page: Page, stack: Stack) -> None:
    page.set_viewport_size({"width": 1200, "height": 760})
    page.goto("/console/chat")
    expect(page.locator("#model option")).not_to_have_count(0)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer, tokens").fill("24")
    for question in ("What is the capital of Japan?", "What is the capital of France?"):
        page.get_by_placeholder("Message").fill(question)
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        expect(page.locator(".turn.assistant .foot").last).to_contain_text("per second")
    shoot(page, "chat")

    page.goto("/console/datasets/new?template=sft_qa_pairs")
    page.locator("#run_name").fill("Espresso machine, questions and answers")
    page.locator("#pairs_text").fill(PAIRS)
    shoot(page, "dataset-new")
    page.get_by_role("button", name="Make dataset").click()
    expect(page.locator("#dataset-state .state")).to_have_text("ready", timeout=60_000)
    page.reload()
    shoot(page, "dataset")
    for path, name in (("/", "home"), ("/console/jobs", "jobs"), ("/console/models", "library"), ("/console/keys", "keys")):
        page.goto(path)
        shoot(page, name)
    page.goto("/console/jobs")
    page.locator("tbody a").first.click()
    expect(page.locator("#log")).not_to_be_empty()
    shoot(page, "job")
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    shoot(page, "home-dark")
    page.set_viewport_size({"width": 390, "height": 780})
    shoot(page, "home-phone")
    page.goto("/console/chat")
    shoot(page, "chat-phone")
