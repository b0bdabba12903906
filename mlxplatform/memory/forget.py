"""Forgetting on a person's order: the words, what was derived from them, and their way back.

A tombstone stays so that no later run brings the matter up again. The present pages, the ledger and the
review queue lose it; earlier commits keep it, because a vault's history is never rewritten: who wants it out
of there too rewrites their own repository by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import F

from mlxplatform.memory import changes, names
from mlxplatform.memory.git import GitFailed
from mlxplatform.memory.ingest import digest_of_turns
from mlxplatform.memory.models import Change, Conversation, Decision, Fold, Tombstone, Vault
from mlxplatform.memory.vault import Wiki
from mlxplatform.memory.wiki import edits, wording
from mlxplatform.memory.wiki.edits import Forget, ReplacePage
from mlxplatform.memory.wiki.page import TURNS, Definition, bare, cited_hashes, definitions, markers, parse, prose, sentences
from mlxplatform.rows.models import RowCall

#: Stands where a change's summary was.
FORGOTTEN = "(forgotten)"
#: Fields of an edit that hold sentences.
_WORDS = ("text", "superseded_by", "replaces")


@dataclass
class Forgotten:
    """What was done, for the answer: commits, pages touched, and why a page is not done yet."""

    pages: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    waiting: str = ""

    def as_json(self) -> dict[str, object]:
        note = "Earlier commits of the vault still hold the text; its history is never rewritten."
        return {"pages": self.pages, "commits": self.commits, "note": note, **({"waiting": self.waiting} if self.waiting else {})}


def conversation(vault: Vault, target: Conversation, by: str) -> Forgotten:
    """Forget one conversation: its text, its passages, and every sentence that rests on it alone."""
    wiki = Wiki.of(vault)
    gone = target.hash
    label = "Forgets a conversation"
    with transaction.atomic():
        key = f"{target.source}:{target.external_id}"
        Tombstone.objects.get_or_create(vault=vault, kind="conversation", key=key[:300], defaults={"by": by})
        ordered = []
        for stem, text in wiki.pages().items():
            if gone in cited_hashes(text):
                ordered.append(_order(vault, stem, text, Forget([gone], []), by, label))
        _scrub(vault, lambda sentence: {source["hash"] for source in sentence["sources"]} <= {gone})
        Fold.objects.filter(vault=vault, chunk_ref__startswith=f"{gone}:").delete()
        Decision.objects.filter(vault=vault, subject__startswith=f"{gone}:").delete()
        target.delete()
    return _carry_out(vault, wiki, ordered)


def tail(vault: Vault, target: Conversation, kept: int, by: str) -> Forgotten:
    """Forget what a conversation says after its first ``kept`` turns: its end was deleted at the source."""
    wiki = Wiki.of(vault)
    gone = target.hash
    with transaction.atomic():
        ordered = []
        for stem, text in wiki.pages().items():
            late = {d.label for d in definitions(text) if d.hashes == [gone] and _last_turn(d) > kept}
            said = [bare(s) for s in sentences(text) if (cited := set(markers(s))) and cited <= late]
            if said:
                ordered.append(_order(vault, stem, text, Forget([], said), by, "Forgets the end of a conversation"))
        _scrub(vault, lambda sentence: all(s["hash"] == gone and s["end"] > kept for s in sentence["sources"]))
        for chunk in target.chunks.filter(end__gt=kept):
            Fold.objects.filter(vault=vault, chunk_ref=chunk.ref).delete()
            Decision.objects.filter(vault=vault, subject__startswith=chunk.ref).delete()
            chunk.delete()
        target.messages.filter(position__gt=kept).delete()
        target.digest, target.chunked = digest_of_turns(target.messages.values_list("role", "text")), ""
        target.save(update_fields=["digest", "chunked"])
    return _carry_out(vault, wiki, ordered)


def _last_turn(definition: Definition) -> int:
    found = TURNS.search(definition.text)
    return int(found[2] or found[1]) if found else 0


def fact(vault: Vault, text: str, by: str) -> Forgotten:
    """Forget a statement: every sentence in the vault that repeats it, now and in later runs."""
    wiki = Wiki.of(vault)
    statement = bare(text)
    with transaction.atomic():
        Tombstone.objects.get_or_create(vault=vault, kind="fact", key=statement[:300], defaults={"text": statement, "by": by})
        ordered = []
        for stem, page in wiki.pages().items():
            said = [
                bare(s)
                for s in sentences(page)
                if bare(s) == statement or (markers(s) and wording.comes_back(bare(s), [statement]))
            ]
            if said:
                ordered.append(_order(vault, stem, page, Forget([], said), by, "Forgets a statement"))
        _scrub(vault, lambda sentence: wording.comes_back(sentence["text"], [statement]))
    return _carry_out(vault, wiki, ordered)


def page(vault: Vault, stem: str, by: str) -> Forgotten:
    """Forget a page and its subject: it is taken away and not written again."""
    wiki = Wiki.of(vault)
    text = wiki.read(stem)
    with transaction.atomic():
        Tombstone.objects.get_or_create(vault=vault, kind="page", key=names.fold(stem.replace("_", " ")), defaults={"by": by})
        vault.changes.filter(stem=stem, state__in=Change.OPEN).update(
            state="rejected", note="its page was forgotten", decided_by=by
        )
        ordered = (
            [changes.order(vault, stem, "forget", ReplacePage(None, edits.digest(text)), by, "Forgets a page")]
            if text is not None
            else []
        )
    return _carry_out(vault, wiki, ordered)


def _order(vault: Vault, stem: str, text: str, edit: Forget, by: str, label: str) -> Change:
    """A change that takes the sentences out, or the whole page when nothing else stands on it."""
    after = edits.apply(text, stem, edit)
    if after is not None and not prose(after).strip() and not cited_hashes(after) and not parse(after).body_sections:
        # Nothing is left to say about it today; what other conversations say may make the page again.
        vault.changes.filter(stem=stem, kind="create", state="accepted").update(
            state="withdrawn", note="all it said was forgotten", fingerprint=F("id")
        )
        Fold.objects.filter(vault=vault, stem=stem).delete()
        return changes.order(vault, stem, "forget", ReplacePage(None, edits.digest(text)), by, label)
    return changes.order(vault, stem, "forget", edit, by, label)


def _scrub(vault: Vault, matches: Callable[[dict[str, Any]], bool]) -> None:
    """Take matching sentences out of every stored change and out of kept prompts; open changes left empty are rejected."""
    gone: set[str] = set()
    for change in vault.changes.filter(kind__in=("create", "patch")):
        edit = change.edit
        creates = edit["type"] == "create"
        lists = [edit["lead"], *(section["sentences"] for section in edit["sections"])] if creates else [edit["sentences"]]
        hit = False
        for sentences_of in lists:
            gone |= {edits.plain_sentence(sentence["text"]) for sentence in sentences_of if matches(sentence)}
            kept = [sentence for sentence in sentences_of if not matches(sentence)]
            hit = hit or len(kept) != len(sentences_of)
            sentences_of[:] = kept
        if not hit:
            continue
        if creates:
            edit["sections"] = [section for section in edit["sections"] if section["sentences"]]
        empty = not any(lists)
        if change.state in Change.OPEN and (empty or (creates and not edit["lead"])):
            change.state, change.note = "rejected", "what it rests on was forgotten"
        _save_without_words(change, FORGOTTEN if empty else change.summary)
    for change in vault.changes.filter(kind__in=("reconcile", "tighten")):
        edit = change.edit
        texts = [edit.get("text", ""), edit.get("superseded_by", ""), *edit.get("replaces", [])]
        if gone & {edits.plain_sentence(text) for text in texts}:
            change.edit = {**edit, **{name: [] if isinstance(edit[name], list) else "" for name in _WORDS if name in edit}}
            if change.state in Change.OPEN:
                change.state, change.note = "rejected", "what it rests on was forgotten"
            _save_without_words(change, FORGOTTEN)
    # Prompts of ended runs quote conversations; they are kept only so that a run can go on after a crash.
    RowCall.objects.filter(job__in=list(vault.runs.exclude(state="running").values_list("job", flat=True))).delete()


def _save_without_words(change: Change, summary: str) -> None:
    change.before, change.edited_text, change.summary = None, None, summary
    change.save(update_fields=["edit", "before", "edited_text", "state", "note", "summary"])


def _carry_out(vault: Vault, wiki: Wiki, ordered: list[Change]) -> Forgotten:
    done = Forgotten(pages=[change.stem for change in ordered])
    try:
        for change in ordered:
            with changes.writing(wiki):
                if changes.commit_one(wiki, change):
                    done.commits.append(change.commit)
                else:
                    done.waiting = change.note
    except GitFailed as error:
        done.waiting = f"{error.message}. It will be done by the next run."
    # The reviewer's view of what stood there before is part of what is forgotten.
    Change.objects.filter(pk__in=[change.pk for change in ordered], state="accepted").update(before=None)
    return done
