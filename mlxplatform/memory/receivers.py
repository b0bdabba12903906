"""What the memory wants to be told by other parts: that records of the response history were deleted."""

from __future__ import annotations

from typing import Any

from mlxplatform.memory import history


def note_deletion(sender: Any, *, project: str, key_id: str | None, request_id: str | None, **more: Any) -> None:
    """The next run takes what only these records held out of the pages."""
    history.deleted(project, key_id, request_id)
