"""A version's rows in another format, as bytes in pieces. Rows without an equivalent there are left out and counted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from mlxplatform.datasets import convert
from mlxplatform.spreadsheet import inert

#: Rows in one piece.
PIECE_ROWS = 200

CSV_COLUMNS = {
    "messages": ("system", "prompt", "completion", "messages"),
    "prompt_completion": ("prompt", "completion"),
    "dpo": ("prompt", "chosen", "rejected"),
    "text": ("text",),
}


def pieces(rows: Iterable[Mapping[str, Any]], wanted: str, output_format: str) -> Iterator[bytes]:
    """``wanted`` is one of convert.EXPORTS except parquet."""
    if wanted == "csv":
        yield from _csv(rows, output_format)
        return
    converted = (made for row in rows if (made := convert.to_format(row, wanted)) is not None)
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
    pair = convert.to_format(row, "prompt_completion") or {"prompt": "", "completion": ""}
    system = next((m.get("content") or "" for m in row["messages"] if m["role"] == "system"), "")
    return [system, pair["prompt"], pair["completion"], json.dumps(row["messages"], ensure_ascii=False)]
