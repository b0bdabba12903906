"""The review queue in a real browser: read the card, reject one change, edit and accept another, see the page, take it back."""

import pytest

pytestmark = pytest.mark.stack

PROPOSE = """
from mlxplatform.memory import changes
from mlxplatform.memory.models import Change, Vault
from mlxplatform.memory.vault import Wiki
from mlxplatform.memory.wiki.edits import CreatePage, Draft, Sentence, Source
vault, _ = Vault.objects.get_or_create(name="wiki")
Wiki.of(vault).set_up()
source = Source("aaaaaaaa", "2026-01-03", "jsonl", 1, 2, "<b>Descaling</b>")
for title in ("Lelit Anna", "Tigerella"):
    said = [Sentence(f"The {title} wants care every two months.", [source])]
    edit = CreatePage(title, "thing", [], said, [Draft("Care", said)])
    change = changes.order(vault, title.replace(" ", "_"), "create", edit, "", f"New page {title}")
    Change.objects.filter(pk=change.pk).update(state="proposed", confidence=0.9)
"""


def test_a_person_reviews_the_queue(stack, page):
    done = stack.manage("shell", "-c", PROPOSE)
    assert done.returncode == 0, done.stderr
    page.goto("/console/memory")
    page.get_by_role("link", name="New page Lelit Anna").click()
    assert "+# Lelit Anna" in page.get_by_label("Difference").inner_text()
    page.get_by_label("The whole page").fill("# Lelit Anna\n\nI descale it on Sundays. See [[Tigerella]].\n")
    page.get_by_role("button", name="Accept my text").click()
    page.get_by_role("heading", name="New page Tigerella").wait_for()
    page.get_by_role("button", name="Reject").click()
    page.get_by_role("heading", name="Memory", level=1).wait_for()
    assert page.get_by_text("Nothing waits for you.").is_visible()
    page.get_by_role("link", name="Lelit Anna", exact=True).click()
    assert page.get_by_text("I descale it on Sundays.").is_visible()
    page.get_by_role("link", name="change", exact=True).first.click()
    page.get_by_role("button", name="Take it back").click()
    page.get_by_role("heading", name="Memory", level=1).wait_for()
    assert page.get_by_text("No pages yet.").is_visible()
    assert not (stack.home / "memory" / "wiki" / "articles" / "Lelit_Anna.md").exists()
