"""Every page with something on it, in light and dark, on a narrow phone, and by keyboard: a walk over a used platform."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import Page

from mlxplatform.console.navigation import SECTIONS
from tests.browser.accessibility import accessible_in_both, fits_a_phone, shows_the_focus
from tests.browser.conftest import ended
from tests.browser.test_memory_review import PROPOSE
from tests.system.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.drill, pytest.mark.timeout(600)]


def used(stack: Stack, dataset: str, adapter: dict[str, Any]) -> list[str]:
    """Make the platform look used; the addresses of single things on it."""
    assert stack.manage("shell", "-c", PROPOSE).returncode == 0
    ((change, vault),) = stack.sql("SELECT id, vault_id FROM memory_change WHERE state = 'proposed' LIMIT 1")
    quantized = stack.http.post("/api/quantize/submit", json={"model": stack.model, "output": "walked"}).json()["job_id"]
    ended(stack, quantized)
    lost = stack.http.post("/api/finetune/submit", json={"model": stack.model, "dataset": dataset, "iters": 100_000}).json()
    stack.http.post(f"/api/jobs/{lost['job_id']}/cancel")
    stack.http.post("/api/schedules", json={"name": "walk", "kind": "memory_synthesis", "cron": "0 4 * * *", "config": {}})
    return [
        f"/console/datasets/{dataset}",
        "/console/datasets/new?template=self_instruct",
        "/console/datasets/import",
        f"/console/models/one?model={stack.model}",
        f"/console/models/reports/{quantized}",
        f"/console/models/adapters/{adapter['adapter']}",
        f"/console/jobs/{adapter['job_id']}",
        f"/console/jobs/{lost['job_id']}",
        f"/console/memory/changes/{change}",
        f"/console/memory/settings/{vault}",
        "/console/password",
    ]


def test_every_page_is_for_everybody(page: Page, stack: Stack, dataset: str, adapter: dict[str, Any]) -> None:
    listed = [reverse(link.route) for section in SECTIONS for link in section.links if link.route != "admin:index"]
    for path in [*listed, *used(stack, dataset, adapter)]:
        page.set_viewport_size({"width": 1200, "height": 800})
        page.goto(path)
        accessible_in_both(page)
        assert shows_the_focus(page) > 10, path
        fits_a_phone(page)
    for change in stack.http.get("/api/memory/changes").json()["changes"]:
        stack.http.post(f"/api/memory/changes/{change['id']}/reject").raise_for_status()
