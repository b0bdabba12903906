"""Vaults, changes and runs as JSON, with what a reviewer needs beside a change: its diff and its source turns."""

from __future__ import annotations

import difflib
from typing import Any

from mlxplatform.jobs.wire import time_text
from mlxplatform.memory import changes
from mlxplatform.memory.models import Change, Conversation, Message, Run, Vault
from mlxplatform.memory.vault import UnsafeName, Wiki
from mlxplatform.memory.wiki import edits

#: Characters of one source turn shown beside a change.
TURN_SHOWN = 2000


def vault_json(vault: Vault) -> dict[str, Any]:
    fields = ("name", "project", "policy", "hand_edits", "model", "min_chunks", "note_chars", "own_history", "history_keys")
    told = {name: getattr(vault, name) for name in (*fields, "evaluation_blocks")}
    return {**told, "created_at": time_text(vault.created_at)}


def change_json(change: Change) -> dict[str, Any]:
    return {
        "id": change.id,
        "vault": change.vault.name,
        "page": change.stem,
        "kind": change.kind,
        "state": change.state,
        "summary": change.summary,
        "confidence": change.confidence,
        "note": change.note or None,
        "run": change.run_id,
        "commit": change.commit or None,
        "created_at": time_text(change.created_at),
        "decided_at": time_text(change.decided_at),
        "decided_by": change.decided_by or None,
    }


def change_card(change: Change) -> dict[str, Any]:
    """A change with everything needed to decide about it."""
    before, after, problem = preview(change)
    return {
        **change_json(change),
        "edit": change.edit,
        "base": edits.digest(before),
        "before": before,
        "after": after,
        "diff": unified(before, after, change.stem),
        "problem": problem or None,
        "sources": [_source_json(change.vault, source) for source in edits.sources_of(edits.from_json(change.edit))],
    }


def preview(change: Change) -> tuple[str | None, str | None, str]:
    """(page now, page after, why it cannot be applied). A committed change shows what it did."""
    wiki = Wiki.of(change.vault)
    if change.commit:
        path = wiki.relative(change.stem)
        return wiki.git.show(path, f"{change.commit}^"), wiki.git.show(path, change.commit), ""
    try:
        before = wiki.read(change.stem)
        return before, edits.apply(before, change.stem, changes.effective(change), wiki.stems()), ""
    except (edits.DoesNotFit, UnsafeName) as error:
        return None, None, str(error)


def unified(before: str | None, after: str | None, stem: str) -> str:
    old, new = ((text or "").splitlines(keepends=True) for text in (before, after))
    lines = difflib.unified_diff(
        old, new, f"a/{stem}.md" if before is not None else "/dev/null", f"b/{stem}.md" if after is not None else "/dev/null"
    )
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def _source_json(vault: Vault, source: edits.Source) -> dict[str, Any]:
    conversation = Conversation.objects.filter(vault=vault, hash=source.hash).first()
    turns = Message.objects.filter(conversation=conversation, position__range=(source.start, source.end)) if conversation else []
    return {
        "conversation": source.hash,
        "title": conversation.title if conversation else None,
        "source": source.origin,
        "date": source.date,
        "label": source.label,
        "turns": [
            {"turn": t.position, "role": t.role, "text": t.text[:TURN_SHOWN], "cut": len(t.text) > TURN_SHOWN} for t in turns
        ],
    }


def run_json(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "vault": run.vault.name,
        "job": run.job,
        "state": run.state,
        "score": run.score,
        "report": run.report,
        "started_at": time_text(run.started_at),
        "ended_at": time_text(run.ended_at),
    }
