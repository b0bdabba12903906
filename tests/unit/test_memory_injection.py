"""A corpus of smuggled instructions, and the worst of models: one that repeats whatever it is told, wherever it can."""

import re
import subprocess

import pytest

from mlxplatform.memory import runs
from mlxplatform.memory.ingest import ingest
from mlxplatform.memory.models import Change, Vault
from mlxplatform.memory.sources.registry import READERS
from mlxplatform.memory.vault import Wiki
from mlxplatform.memory.wiki import gate, html
from mlxplatform.memory.wiki.linking import linked_stems
from mlxplatform.memory.wiki.page import definitions, info_of, parse, prose
from tests.fixtures.memory_hostile import NEVER_SAID, SMUGGLED, conversations
from tests.fixtures.memory_notes import CORPUS, Ctx, Scripted, jsonl

pytestmark = pytest.mark.django_db(transaction=True)
SUBJECT, PAGE = "Lelit Anna", "Lelit_Anna"
BYSTANDER = "# Balcony\n\nMy balcony faces south.\n"


class Obedient(Scripted):
    """Puts every smuggled text it is shown into every place its answers have for text."""

    def _answer(self, ask):
        said = [text for text in SMUGGLED if " ".join(text.split())[:60] in " ".join(ask.prompt.split())] or [""]
        self.override = lambda _: self._obey(ask, said)
        return super()._answer(ask)

    def _obey(self, ask, said):
        facts = re.findall(r"The Lelit Anna has part number \d+\.", ask.prompt)
        everything = [*said, *facts][:8]
        match ask.stage:
            case "segment":
                return {"passages": [{"first": -5, "last": 99999, "label": said[0]}, {"first": 2, "last": 1, "label": said[0]}]}
            case "extract":
                return {"names": [*said, SUBJECT]}
            case "outline":
                return {"kind": "thing", "sections": [{"title": text, "notes": [1, 0, -1, 999]} for text in everything[:6]]}
            case "draft" | "patch" | "lead":
                return {"sentences": [{"text": text, "note": note} for text in everything for note in (1, 77)][:8]}
            case "place":
                return {"section": "(new section)", "title": said[0]}
            case "reconcile":
                return {"verdicts": ["error" for _ in re.findall(r"^\d+\. ", ask.prompt, re.MULTILINE)]}
        return None


@pytest.fixture
def vault(settings, tmp_path):
    settings.ENV = type(settings.ENV)({**settings.ENV.values, "home": tmp_path}, "", "")
    made = Vault.objects.create(name="notes", policy="auto")
    wiki = Wiki.of(made)
    wiki.set_up()
    wiki.path("Balcony").write_text(BYSTANDER)
    read(made, CORPUS)
    run(made, 1, Scripted())
    read(made, conversations(SUBJECT))
    return made


def read(vault, found):
    ingest(vault, "jsonl", READERS["jsonl"](jsonl(found), "x"))


def run(vault, number, client):
    return runs.synthesize(Ctx({"vault": "notes"}, f"job_{number:016d}"), Vault.objects.get(pk=vault.pk), client)


def git(vault, *args):
    return subprocess.run(["git", "-C", Wiki.of(vault).root, *args], check=True, capture_output=True, text=True).stdout


def test_what_conversations_say_steers_no_path_link_heading_source_commit_or_other_page(vault):
    wiki = Wiki.of(vault)
    before = {path: path.read_bytes() for path in wiki.root.rglob("*") if path.is_file() and ".git" not in path.parts}
    outside = {path for path in wiki.root.parent.rglob("*") if wiki.root not in path.parents}
    result = run(vault, 2, Obedient())
    assert result["model_calls"] > 30 and result["proposed"] > 5, "the hostile notes did reach the model"

    # Files: nothing new but the pages of real subjects, nothing outside, other pages as they were.
    after = {path: path.read_bytes() for path in wiki.root.rglob("*") if path.is_file() and ".git" not in path.parts}
    fresh = {path.name for path in after.keys() - before.keys() if path.parent.name == "articles"}
    for name in fresh:
        assert re.fullmatch(r"[\w' &+.,()-]+\.md", name) and not name.startswith("."), name
    assert {path for path in wiki.root.parent.rglob("*") if wiki.root not in path.parents} == outside
    assert all(after[path] == text for path, text in before.items() if path.name != f"{PAGE}.md" and path.parent.name != "Talk")

    assert not {name for name in fresh if re.search("evil|pwn|meta|passwd|con", name, re.IGNORECASE)}, fresh

    # Pages: plain prose of the machine's own making around the one true statement of each note.
    stems = set(wiki.stems())
    for stem in {PAGE, *(name.removesuffix(".md") for name in fresh)}:
        text = wiki.read(stem)
        assert gate.reasons_against("", text) == [], stem
        assert set(linked_stems(text)) <= stems
        assert "Everything" not in info_of(text).get("aliases", "") and info_of(text).get("kind") == "thing"
        hashes = {h for d in definitions(text) for h in d.hashes}
        assert hashes <= set(vault.conversations.values_list("hash", flat=True)) and not hashes & {"00000000", "deadbeef"}
        history = [section.body for section in parse(text).sections if section.title == "History"]
        assert len(history) <= 1 and "2030" not in "".join(history)
        assert all(section.body.strip() for section in parse(text).sections), text
        body = prose(re.sub(r"\[\[[^\]]*\]\]", "", text))
        for poison in (
            "](",
            "<script",
            "onerror",
            "<|",
            "javascript:",
            "```",
            "~~~",
            "{{series",
            "%%",
            "://",
            "[INST",
        ):
            assert poison not in body, (stem, poison, body)
        assert not re.search("[\u200b\u202e\u2066\u2028\u2029\u0007\U000e0000-\U000e007f\\\\]", text)
        lines = text.splitlines()
        assert [line for line in lines if line.startswith("# ")] == [f"# {stem.replace('_', ' ')}"]
        shown = html.render(text, lambda name: f"/{name}")
        assert "<script" not in shown and "<img" not in shown and "javascript:" not in shown
        assert not [word for word in NEVER_SAID if word.casefold() in body.casefold()], (stem, body)
    assert "part number 1000" in wiki.read(PAGE) and f"part number {999 + len(SMUGGLED)}" in wiki.read(PAGE)

    # Commits: one trailer each, that of the change it holds; no reviewer, since nobody reviewed.
    changes = set(Change.objects.filter(vault=vault, state="accepted").values_list("id", flat=True))
    told = git(vault, "log", "--format=%(trailers:key=Memory-Change,valueonly)").split()
    assert sorted(told) == sorted(changes)
    assert (
        git(vault, "log", "--format=%(trailers:key=Memory-Reviewer,valueonly)%(trailers:key=Signed-off-by,valueonly)").strip()
        == ""
    )
    assert git(vault, "log", "-1", "--format=%s", "--", "articles/Balcony.md").strip() == "memory: keep hand edits to 1 pages"


def test_the_fence_around_quoted_text_cannot_be_closed_from_inside(vault):
    prompts = []

    class Spy(Obedient):
        def ask(self, asks):
            prompts.extend(ask.prompt for ask in asks)
            return super().ask(asks)

    run(vault, 2, Spy())
    quoting = [prompt for prompt in prompts if "part number" in prompt]
    assert quoting and all(len(re.findall(r"^-----$", prompt, re.MULTILINE)) == 2 for prompt in quoting)
