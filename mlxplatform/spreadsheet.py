"""Text as a cell that no spreadsheet runs: what looks like a formula gets a leading apostrophe and stays readable."""

from __future__ import annotations

#: First characters by which spreadsheets know a formula, also in their full width.
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: Marks that are not seen, and that some spreadsheets drop before they look.
_UNSEEN = "\0\ufeff\u200b\u200c\u200d\u200e\u200f\u2060"
#: Dropped before looking, too, and by some taken for the end of the cell.
_LINE_STARTS = ("\t", "\r", "\n")


def inert(text: str) -> str:
    return f"'{text}" if text.lstrip(_UNSEEN).startswith(FORMULA + _LINE_STARTS) else text
