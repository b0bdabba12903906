"""What every reader of a source yields: a row with its place, or the problem it has. No formats here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxplatform.datasets.imports.quick import QuickRow


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that cannot be used. ``where`` is "line 3", "row 3" or "item 3"; ``column`` counts characters."""

    where: str
    code: str
    reason: str
    column: int | None = None
    file: str = ""
    field: str = ""

    def __str__(self) -> str:
        place = f"{self.file} {self.where}".strip()
        column = f", column {self.column}" if self.column is not None else ""
        field = f"{self.field} " if self.field and self.field != "row" else ""
        return f"{place}{column}: {field}{self.reason}"


class Unreadable(Exception):
    """The source as a whole cannot be read; a sentence for the person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


#: A row with its place, or why there is none.
Plain = tuple[str, dict[str, Any]] | Problem
#: The same, where quickly read rows are finished lines.
Item = Plain | tuple[str, QuickRow]


def named(name: str) -> str:
    """How a sentence begins about a file that may have no name."""
    return name or "The file"
