"""A wiki written by the starter model on the running platform, as its owner lives with it.

The model is small and says what it says; nothing here depends on its words. What the checks promise must hold of
whatever it writes: cited, reviewed, undone, forgotten, and never over a person's own edit.
"""

import re
import shutil
import subprocess

import pytest

from mlxplatform.library import starters
from mlxplatform.memory.wiki import gate
from mlxplatform.memory.wiki.page import cited_hashes, lead_of, markers, parse, sentences
from tests.fixtures.memory_life import HARD_WATER, LIFE
from tests.fixtures.memory_notes import jsonl
from tests.system.stack import Stack, eventually

#: Some thirty answers of a real model: minutes on two cores, more beside other work.
pytestmark = [pytest.mark.stack, pytest.mark.drill, pytest.mark.timeout(1800)]
STARTER = "smollm2-135m-instruct"
#: Two subjects of two chats each, and some small talk: what a slow machine writes in two minutes.
STORY = [chat for chat in LIFE if "boat" not in chat["id"]]
MINE = "The Lelit Anna stands in my kitchen and nowhere else."


@pytest.fixture
def platform(home_template, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(home_template, home)
    starters.ensure(home)
    with Stack(home, {"MLXPLATFORM_MODEL": STARTER}) as running:
        yield running


class Owner:
    """What the owner of a vault does, over the API."""

    def __init__(self, stack):
        self.http = stack.http
        self.root = stack.home / "memory" / "wiki"

    def post(self, path, body=None, status=200):
        answer = self.http.post(path, json=body or {}, timeout=120)
        assert answer.status_code == status, answer.text
        return answer.json()

    def get(self, path):
        return self.http.get(path).json()

    def job(self, path, body):
        job = self.post(path, body, 202)["job"]["id"]

        def look():
            found = self.get(f"/api/jobs/{job}")["job"]
            return found if found["state"] in {"done", "failed", "cancelled"} else None

        ended = eventually(look, seconds=800, what=f"the end of {job}")
        assert ended["state"] == "done", ended["error"]
        return ended["result"]

    def read(self, conversations):
        return self.job("/api/memory/import", {"format": "jsonl", "content": jsonl(conversations).decode()})

    def write(self):
        return self.job("/v1/memory/synthesize", {})

    def waiting(self):
        return self.get("/api/memory/changes")["changes"]

    def pages(self):
        return {path.stem: path.read_text() for path in sorted((self.root / "articles").glob("*.md"))}

    def git(self, *args):
        return subprocess.run(["git", "-C", self.root, *args], check=True, capture_output=True, text=True).stdout


def test_a_wiki_is_written_reviewed_edited_forgotten_and_taken_back(platform):
    owner = Owner(platform)
    owner.post("/api/memory/init")
    assert owner.read(STORY)["added"] == len(STORY)

    # Written: proposals only, each with its source turns.
    first = owner.write()
    assert first["proposed"] > 0 and owner.pages() == {}
    cards = [owner.get(f"/api/memory/changes/{change['id']}")["change"] for change in owner.waiting()]
    assert all(card["diff"] and card["confidence"] >= 0.5 for card in cards)
    assert all(source["turns"] for card in cards for source in card["sources"])

    # Reviewed: accepted one by one, each a commit of its own.
    for card in cards:
        owner.post(f"/api/memory/changes/{card['id']}/accept")
    pages = owner.pages()
    said = "\n".join(turn["content"] for chat in STORY for turn in chat["messages"])
    for stem, text in pages.items():
        assert gate.reasons_against("", text) == [], stem
        body = [s for part in (lead_of(parse(text)), *(s.body for s in parse(text).body_sections)) for s in sentences(part)]
        assert body and all(markers(sentence) for sentence in body), text
        assert all(number in said for number in re.findall(r"\b\d+\b", " ".join(re.sub(r"\[\^\d+\]", "", s) for s in body))), text
    assert owner.git("log", "--format=%s").count("memory: create") == len(pages)
    assert owner.git("log", "--format=%B").count("Memory-Reviewer:") == len(cards)

    # Edited by hand, then run again: the words stay, in a commit of their own; nothing is asked but where links go.
    stem, text = next(iter(pages.items()))
    mine = text.replace("\n## ", f"\n{MINE}\n\n## ", 1)
    (owner.root / "articles" / f"{stem}.md").write_text(mine)
    owner.write()
    assert owner.pages()[stem] == mine and "keep hand edits" in owner.git("log", "-1", "--format=%s", "--", f"articles/{stem}.md")
    before, head = owner.pages(), owner.git("rev-parse", "HEAD")
    again = owner.write()
    assert again["model_calls"] == 0 and again["nothing_because"]
    assert owner.pages() == before and owner.git("rev-parse", "HEAD") == head

    # Forgotten: a conversation that a page rests on, and it does not come back.
    conversation = next(iter(cited_hashes(pages[stem])))
    owner.post("/api/memory/forget", {"conversation": conversation})
    assert all(conversation not in text for text in owner.pages().values())
    assert owner.read(STORY)["forgotten"] == 1
    owner.write()
    assert all(conversation not in text for text in owner.pages().values()) and MINE in "".join(owner.pages().values())

    # Taken back: a night whose changes were all accepted, in one go.
    for change in owner.waiting():
        owner.post(f"/api/memory/changes/{change['id']}/reject")
    before = owner.pages()
    owner.read([HARD_WATER])
    night = owner.write()
    for change in owner.waiting():
        # One that no longer fits the page after its neighbours is told so and stays out.
        answer = owner.http.post(f"/api/memory/changes/{change['id']}/accept", json={})
        assert answer.status_code in {200, 409}, answer.text
    answer = owner.post(f"/api/memory/runs/{night['run']}/revert")
    assert answer["refused"] == [] and owner.waiting() == []
    assert owner.pages() == before
    assert owner.git("status", "--porcelain") == "" and owner.git("fsck", "--strict") == ""
