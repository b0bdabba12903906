"""The life of a change: from a plan to a commit, a rejection, or a revert. One commit per accepted change.

Writing is a recoverable step: what is about to be written is in SQL before the file changes, the file is put
in place by one rename, the commit names the change, and only then is the row closed. Whoever finds an
unfinished one looks for its commit and for its file, so a fold never happens twice and none is lost.

A person's edits always win. A page with uncommitted edits is committed by itself first, or left alone, as
the vault's policy says; nothing is ever overwritten, rewritten or forced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from mlxplatform.inference.contract import Refusal
from mlxplatform.memory import index
from mlxplatform.memory.git import CHANGE_TRAILER, GitFailed
from mlxplatform.memory.ingest import short_hash
from mlxplatform.memory.locks import LockBusy
from mlxplatform.memory.models import Change, Run, Vault
from mlxplatform.memory.synthesis import fingerprint, withdraw
from mlxplatform.memory.vault import ARTICLES, UnsafeName, Wiki
from mlxplatform.memory.wiki import edits, gate
from mlxplatform.memory.wiki.edits import AddSentences, CreatePage, DoesNotFit, Edit, Forget, ReplacePage
from mlxplatform.memory.wiki.normalize import normalize
from mlxplatform.memory.wiki.page import bare

log = structlog.get_logger(__name__)

#: Stands for "no page" where the digest of a result is kept.
GONE = "gone"
#: Seconds a person's request waits for a commit of somebody else.
REVIEW_WAIT_S = 30.0


class Held(Exception):
    """The change cannot be committed now for a reason of its own; others can."""


@contextmanager
def writing(wiki: Wiki) -> Iterator[Wiki]:
    """The vault with its write lock held and nothing of git's in the way.

    Raises:
        GitFailed: the vault is locked for too long, or in the middle of something of its owner's.
    """
    try:
        lock = wiki.writing(REVIEW_WAIT_S)
    except LockBusy:
        raise GitFailed("vault_locked", f"the vault has been busy for more than {REVIEW_WAIT_S:.0f} s; try again") from None
    with lock:
        if reason := wiki.git.obstacle():
            raise GitFailed("vault_busy", reason)
        yield wiki


def effective(change: Change) -> Edit:
    """What to apply: a reviewer's own text when there is one, the proposed edit otherwise."""
    if change.edited_text is not None:
        return ReplacePage(change.edited_text, change.edited_base)
    return edits.from_json(change.edit)


def order(vault: Vault, stem: str, kind: str, edit: Edit, by: str, summary: str, run: Run | None = None) -> Change:
    """A change that a person ordered: approved at once, kept like any other."""
    last = vault.changes.aggregate(last=Max("number"))["last"] or 0
    change = Change(
        vault=vault,
        run=run,
        stem=stem,
        kind=kind,
        edit=edits.to_json(edit),
        number=last + 1,
        summary=summary[:300],
        state="approved",
        decided_by=by,
        decided_at=timezone.now(),
    )
    change.fingerprint = fingerprint(stem, f"{kind}:{change.id}", edit)
    change.save(force_insert=True)
    return change


def commit_approved(vault: Vault, wiki: Wiki, check: object = None) -> list[Change]:
    """Commit what is approved, in order; returns the changes that entered the vault.

    Raises:
        GitFailed: the vault takes no commits now; everything still approved is kept for the next time.
    """
    done: list[Change] = []
    for change in list(vault.changes.filter(state="approved")):
        if callable(check):
            check()
        with writing(wiki):
            if commit_one(wiki, change):
                done.append(change)
    return done


def commit_one(wiki: Wiki, change: Change) -> bool:
    """Bring one approved change into the vault. The write lock is held. False when it was held back instead.

    Raises:
        GitFailed: git would not; the change stays approved and the page is as it was.
    """
    if change.result and _finish_interrupted(wiki, change):
        return True
    try:
        text = _write(wiki, change)
    except DoesNotFit as error:
        withdraw(change, str(error))
        return False
    except (Held, UnsafeName) as error:
        _hold(change, str(error))
        return False
    path = wiki.relative(change.stem)
    try:
        rev = wiki.git.commit([path], _message(change), wiki.write_lock)
    except GitFailed:
        _put_back(wiki, change)
        raise
    _close(wiki, change, rev, text)
    return True


def _finish_interrupted(wiki: Wiki, change: Change) -> bool:
    """A change whose writing was cut off: close it if its commit exists, or commit its file if it stands."""
    rev = wiki.git.commit_of_change(change.id)
    text = wiki.read(change.stem)
    if not rev and _digest(text) == change.result:
        rev = wiki.git.commit([wiki.relative(change.stem)], _message(change), wiki.write_lock)
    if not rev:
        change.result = ""
        return False
    log.info("memory.change_recovered", change=change.id)
    _close(wiki, change, rev, text)
    return True


def _write(wiki: Wiki, change: Change) -> str | None:
    """Put the changed page in place and note in SQL what is being done. Returns the new text."""
    stem = change.stem
    if wiki.spelled(stem) != stem:
        raise Held("a page exists whose name differs in case only")
    _keep_hand_edits(wiki, change.vault, stem)
    before = wiki.read(stem)
    edit = effective(change)
    after = edits.apply(before, stem, edit, wiki.stems())
    if after == before:
        raise DoesNotFit("the page says this already")
    if reasons := _reasons_against(edit, before, after):
        raise Held("; ".join(reasons))
    change.before, change.result = before, _digest(after)
    change.save(update_fields=["before", "result"])
    if wiki.read(stem) != before:
        raise Held("the page was changed a moment ago")
    wiki.write(stem, after)
    return after


def _reasons_against(edit: Edit, before: str | None, after: str | None) -> list[str]:
    """The gate, as strict as the edit's author: a person's own text passes, an order to forget may shorten a page."""
    if isinstance(edit, ReplacePage) or after is None:
        return []
    if isinstance(edit, Forget):
        return gate.footnote_faults(before or "", after)
    released = edits.released_by(edit, before, after)
    return gate.reasons_against(before or "", after, released, edits.corrected_words(edit, before))


def _digest(text: str | None) -> str:
    return edits.digest(text) or GONE


def _keep_hand_edits(wiki: Wiki, vault: Vault, stem: str) -> None:
    """See to it that what a person wrote is in git before the page changes.

    Raises:
        Held: the vault's policy is to wait for its owner.
    """
    path = wiki.relative(stem)
    if not wiki.git.dirty(path):
        return
    if vault.hand_edits == "wait":
        raise Held("the page has edits that are in no commit yet")
    wiki.git.commit([path], f"memory: keep hand edits to {stem.replace('_', ' ')}\n", wiki.write_lock)


def keep_all_hand_edits(vault: Vault, wiki: Wiki) -> list[str]:
    """Commit every uncommitted article and policy page by itself, before a run; returns their paths."""
    if vault.hand_edits == "wait":
        return []
    with writing(wiki):
        paths = [path for path in wiki.git.dirty(ARTICLES, "Meta") if path.endswith(".md")]
        if paths:
            wiki.git.commit(paths, f"memory: keep hand edits to {len(paths)} pages\n", wiki.write_lock)
    return paths


def _message(change: Change) -> str:
    verb = {"create": "create", "patch": "patch", "reconcile": "reconcile", "link": "link", "tighten": "tighten"}.get(
        change.kind, change.kind
    )
    trailers = [f"{CHANGE_TRAILER}: {change.id}"]
    if change.run_id:
        trailers += (
            [f"Memory-Run: {change.run_id}", f"Memory-Job: {change.run.job}"]
            if change.run and change.run.job
            else [f"Memory-Run: {change.run_id}"]
        )
    sources = edits.sources_of(edits.from_json(change.edit))
    trailers += [f"Memory-Source: conv:{source.hash} {source.start}-{source.end}" for source in sources]
    if change.decided_by:
        trailers.append(f"Memory-Reviewer: {change.decided_by}")
    lines = [f"memory: {verb} {change.stem.replace('_', ' ')}", "", change.summary, "", *trailers]
    return "\n".join(line.replace("\n", " ") for line in lines) + "\n"


def _close(wiki: Wiki, change: Change, rev: str, text: str | None) -> None:
    with transaction.atomic():
        change.state, change.commit, change.note = "accepted", rev, ""
        change.decided_at = change.decided_at or timezone.now()
        change.save(update_fields=["state", "commit", "note", "decided_at"])
        index.update_page(change.vault, change.stem, text)
    log.info("memory.change_committed", change=change.id, kind=change.kind, page=change.stem)


def _put_back(wiki: Wiki, change: Change) -> None:
    """Undo the file of a change that git refused, unless somebody has changed it since."""
    if _digest(wiki.read(change.stem)) == change.result:
        wiki.write(change.stem, change.before)
        if change.before is None:
            wiki.git.unstage(wiki.relative(change.stem), wiki.write_lock)
    change.result = ""
    change.save(update_fields=["result"])


def _hold(change: Change, reason: str) -> None:
    change.state, change.note, change.result = "proposed", reason, ""
    change.save(update_fields=["state", "note", "result"])


def settle(run: Run, held: str = "") -> None:
    """Decide about what a finished plan holds: approve it, or leave it to people (always when ``held`` says why)."""
    state = "approved" if run.vault.policy == "auto" and not held else "proposed"
    run.vault.changes.filter(state="planned").update(state=state, note=held)


# What a reviewer does.


def accept(change: Change, by: str, text: str | None = None, base: str | None = None) -> Change:
    """Accept a proposed change, as it is or with the reviewer's own text for the whole page.

    Raises:
        Refusal: it is not open, its page changed under the reviewer, or git would not.
    """
    wiki = Wiki.of(change.vault)
    try:
        with writing(wiki):
            change = Change.objects.select_related("vault", "run").get(pk=change.pk)
            if change.state == "accepted":
                return change
            if change.state not in ("proposed", "approved"):
                raise Refusal(409, "change_not_open", f"this change is {change.state} and cannot be accepted", param="id")
            if text is not None:
                present = edits.digest(wiki.read(change.stem))
                if base is not None and base != present:
                    raise Refusal(
                        409, "page_changed", "the page was changed since you saw it; look again and repeat", param="base"
                    )
                change.edited_text, change.edited_base = text, present
            change.state, change.decided_by, change.decided_at, change.note = "approved", by, timezone.now(), ""
            change.save()
            commit_one(wiki, change)
    except GitFailed as error:
        raise Refusal(
            503, error.code, f"{error.message}. The change is kept and will be committed later.", retry_after=30
        ) from None
    change.refresh_from_db()
    if change.state != "accepted":
        raise Refusal(409, "change_held", change.note, param="id")
    return change


def reject(change: Change, by: str) -> Change:
    """Reject an open change; it is not proposed again.

    Raises:
        Refusal: it is not open.
    """
    with transaction.atomic():
        change = Change.objects.select_for_update().get(pk=change.pk)
        if change.state == "rejected":
            return change
        if change.state not in Change.OPEN or change.result:
            raise Refusal(409, "change_not_open", f"this change is {change.state} and cannot be rejected", param="id")
        change.state, change.decided_by, change.decided_at = "rejected", by, timezone.now()
        change.save(update_fields=["state", "decided_by", "decided_at"])
    return change


def revert(change: Change, by: str) -> Change:
    """Take an accepted change back with a commit of its own; history is never rewritten.

    Raises:
        Refusal: it is not in the vault, or later edits stand on it.
    """
    wiki = Wiki.of(change.vault)
    try:
        with writing(wiki):
            change = Change.objects.select_related("vault", "run").get(pk=change.pk)
            if change.state == "reverted":
                return change
            if change.state != "accepted":
                raise Refusal(
                    409, "change_not_accepted", f"this change is {change.state}; only accepted ones can be reverted", param="id"
                )
            if change.kind == "forget":
                raise Refusal(409, "forgotten", "what was forgotten is gone and cannot be brought back", param="id")
            _keep_hand_edits(wiki, change.vault, change.stem)
            present = wiki.read(change.stem)
            wanted = _kept_away(change.vault, change.stem, _without(wiki, change, present))
            if wanted != present:
                back = order(
                    change.vault,
                    change.stem,
                    "revert",
                    ReplacePage(wanted, edits.digest(present)),
                    by,
                    f"Reverts {change.summary}",
                )
                back.edited_text, back.edited_base = wanted, edits.digest(present)
                if not commit_one(wiki, back):
                    raise Refusal(409, "change_held", back.note, param="id")
            change.state, change.decided_by, change.decided_at = "reverted", by, timezone.now()
            change.save(update_fields=["state", "decided_by", "decided_at"])
    except Held as error:
        raise Refusal(409, "change_held", str(error), param="id") from None
    except GitFailed as error:
        raise Refusal(503, error.code, error.message, retry_after=30) from None
    return change


def _kept_away(vault: Vault, stem: str, text: str | None) -> str | None:
    """A text from the vault's past without what was forgotten since."""
    tombs = vault.tombstones.values_list("kind", "key", "text")
    named = [key.partition(":") for kind, key, _ in tombs if kind == "conversation"]
    hashes = [short_hash(source, external_id, set()) for source, _, external_id in named]
    texts = [text for kind, _, text in tombs if kind == "fact"]
    if text is None or not (hashes or texts):
        return text
    return edits.apply(text, stem, Forget(hashes, texts))


def _without(wiki: Wiki, change: Change, present: str | None) -> str | None:
    """The page as it would be had this change never been made."""
    if _digest(present) == change.result and change.commit:
        return wiki.git.show(wiki.relative(change.stem), f"{change.commit}^")
    if present is None:
        return None
    edit = effective(change)
    if isinstance(edit, CreatePage):
        raise Refusal(
            409, "page_built_on", "later changes build on this page; revert those first, or forget the page", param="id"
        )
    if isinstance(edit, AddSentences):
        own = [sentence.text for sentence in edit.sentences]
        return normalize(_drop(present, own, change.stem), change.stem, wiki.stems()).text
    path = wiki.relative(change.stem)
    after, before = wiki.git.show(path, change.commit), wiki.git.show(path, f"{change.commit}^")
    merged = _merged(wiki, present, after or "", before or "")
    if merged is None:
        raise Refusal(409, "page_built_on", "later edits touch the same lines; revert those first or edit the page", param="id")
    return normalize(merged, change.stem, wiki.stems()).text


def _drop(text: str, sentences: Sequence[str], stem: str) -> str:
    changed = edits.apply(text, stem, Forget([], [bare(sentence) for sentence in sentences]))
    return text if changed is None else changed


def _merged(wiki: Wiki, present: str, after: str, before: str) -> str | None:
    """``present`` with the step from ``before`` to ``after`` taken back, or None on a conflict."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("present", "after", "before")]
        for file, text in zip(files, (present, after, before), strict=True):
            file.write_text(text, encoding="utf-8", newline="\n")
        done = wiki.git.run("merge-file", "-p", "-q", *map(str, files), check=False)
    return done.out if done.code == 0 else None


def revert_run(run: Run, by: str) -> tuple[list[str], list[dict[str, str]]]:
    """Revert every accepted change of a run, newest first: ids reverted, and those that would not with the reason."""
    reverted: list[str] = []
    refused: list[dict[str, str]] = []
    for change in run.changes.filter(state="accepted").order_by("-number"):
        try:
            revert(change, by)
            reverted.append(change.id)
        except Refusal as refusal:
            refused.append({"id": change.id, "error": refusal.message})
    for change in run.changes.filter(state__in=("planned", "proposed")):
        reject(change, by)
    return reverted, refused
