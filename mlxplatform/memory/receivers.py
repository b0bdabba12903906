"""What the memory wants to be told: that records of the response history were deleted, and that sections of its own were."""

from __future__ import annotations

from typing import Any

from mlxplatform.memory import history, index
from mlxplatform.memory.models import Section


def note_deletion(sender: Any, *, project: str, key_id: str | None, request_id: str | None, **more: Any) -> None:
    """The next run takes what only these records held out of the pages."""
    history.deleted(project, key_id, request_id)


def note_section(sender: Any, *, instance: Section, **more: Any) -> None:
    """Also when a whole vault or project goes, by cascade: its words must not stay in the full-text table."""
    index.forget_words(instance.pk)
