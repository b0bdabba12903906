"""A real Chromium, signed in to the running platform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.system.stack import Stack, eventually

#: Root needs --no-sandbox; the rest keeps the browser from calling anybody.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def admin_state(browser: Browser, stack: Stack) -> dict[str, object]:
    """Cookies of a session that signed in through the form."""
    context = browser.new_context(base_url=stack.base_url)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(stack.admin_password())
    page.locator("button[type=submit]").click()
    page.get_by_role("heading", name="Home").wait_for()
    state = dict(context.storage_state())
    context.close()
    return state


@pytest.fixture
def context(browser: Browser, stack: Stack, admin_state: dict[str, object]) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=stack.base_url, storage_state=admin_state)  # type: ignore[arg-type]
    made.set_default_timeout(60_000)
    yield made
    made.close()


def _is_problem(message: ConsoleMessage) -> bool:
    # A form answered with 400 shows its mistake to the person; Chromium logs it as well.
    return message.type == "error" and "status of 400" not in message.text


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """One page; a script error or a blocked resource on it fails the test."""
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if _is_problem(message) else None)
    yield opened
    assert not problems


@pytest.fixture(scope="session")
def dataset(stack: Stack) -> str:
    """Id of a small dataset to learn from."""
    pairs = "\n\n".join(f"Q: code {n}?\nA: ZX-81." for n in range(20))
    body = {"template": "sft_qa_pairs", "name": "codes", "inputs": {"pairs_text": pairs}}
    made = stack.http.post("/api/dataset/submit", json=body).json()
    ended(stack, made["job_id"])
    return str(made["dataset_id"])


@pytest.fixture(scope="session")
def adapter(stack: Stack, dataset: str) -> dict[str, Any]:
    """The answer to the order of a fine-tune that is done, with its ``result``."""
    body = {"model": stack.model, "dataset": dataset, "suffix": "seen", "iters": 30, "steps_per_report": 5}
    made = stack.http.post("/api/finetune/submit", json=body).json()
    return {**made, "result": ended(stack, made["job_id"])["result"]}


def ended(stack: Stack, job_id: str) -> dict[str, Any]:
    """The row of a job, once it is done."""

    def row() -> dict[str, Any] | None:
        job: dict[str, Any] = stack.http.get(f"/api/jobs/{job_id}").json()["job"]
        return job if job["state"] == "done" else None

    return eventually(row, seconds=240, what=job_id) or {}
