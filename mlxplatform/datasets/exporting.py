"""A version's rows in another format, as bytes in pieces. Rows without an equivalent there are left out, and counted before."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from mlxplatform.datasets import formats
from mlxplatform.spreadsheet import inert

#: Rows in one piece.
PIECE_ROWS = 200

CSV_COLUMNS = {
    "messages": ("system", "prompt", "completion", "messages", "tools"),
    "prompt_completion": ("prompt", "completion"),
    "dpo": ("prompt", "chosen", "rejected"),
    "text": ("text",),
}


class Counted(NamedTuple):
    """Rows that have an equivalent in a format, and rows that have none."""

    kept: int
    left_out: int


def takes_all(wanted: str, output_format: str) -> bool:
    """Whether a format takes any row of a version in this one."""
    return wanted in ("jsonl", "csv", "parquet", output_format)


def left_out(rows: Iterable[Mapping[str, Any]], wanted: str) -> Counted:
    kept = lost = 0
    for row in rows:
        if formats.to_format(row, wanted) is None:
            lost += 1
        else:
            kept += 1
    return Counted(kept, lost)


def pieces(rows: Iterable[Mapping[str, Any]], wanted: str, output_format: str) -> Iterator[bytes]:
    """``wanted`` is one of formats.EXPORTS except parquet."""
    if wanted == "csv":
        yield from _csv(rows, output_format)
        return
    converted = (made for row in rows if (made := formats.to_format(row, wanted)) is not None)
    while block := list(islice(converted, PIECE_ROWS)):
        yield b"".join(msgspec.json.encode(row) + b"\n" for row in block)


def _csv(rows: Iterable[Mapping[str, Any]], output_format: str) -> Iterator[bytes]:
    columns = CSV_COLUMNS[output_format]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(columns)
    source = iter(rows)
    while block := list(islice(source, PIECE_ROWS)):
        for row in block:
            writer.writerow([inert(cell) for cell in _cells(row, columns)])
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def _cells(row: Mapping[str, Any], columns: tuple[str, ...]) -> list[str]:
    if "messages" not in columns:
        return [
            value if isinstance(value := row.get(column, ""), str) else json.dumps(value, ensure_ascii=False)
            for column in columns
        ]
    pair = formats.pair_of(row["messages"], "prompt", "completion") or {"prompt": "", "completion": ""}
    system = next((m.get("content") or "" for m in row["messages"] if m["role"] == "system"), "")
    tools = json.dumps(row["tools"], ensure_ascii=False) if row.get("tools") else ""
    return [system, pair["prompt"], pair["completion"], json.dumps(row["messages"], ensure_ascii=False), tools]
