"""A version's rows as a Parquet file, in pieces, without holding more than a block of rows.

A first pass finds which keys occur; only those become columns. What has no fixed type (tools, tool calls, metadata) is
kept as JSON text in its column, which the import turns back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

#: Rows in one row group.
GROUP = 10_000
#: Keys of a row or a turn whose value is of no fixed type.
AS_JSON = frozenset({"tools", "tool_calls", "metadata", "parallel_tool_calls"})
_TURN_ORDER = ("role", "content", "name", "tool_calls", "tool_call_id", "weight")

Rows = Iterable[Mapping[str, Any]]


def pieces(rows: Callable[[], Rows]) -> Iterator[bytes]:
    """``rows`` opens them anew each time it is called."""
    import pyarrow
    import pyarrow.parquet

    schema = _schema(rows())
    sink = _Sink()
    with pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        source = iter(rows())
        while block := list(islice(source, GROUP)):
            writer.write_table(pyarrow.Table.from_pylist([_plain(row) for row in block], schema=schema))
            yield sink.taken()
    yield sink.taken()


class _Sink:
    """What the writer takes for a file; its bytes are handed on as they come."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._written = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._written += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        whole = b"".join(self._pieces)
        self._pieces.clear()
        return whole

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _schema(rows: Rows) -> Any:
    import pyarrow

    row_keys: dict[str, None] = {}
    turn_keys: set[str] = set()
    for row in rows:
        row_keys.update(dict.fromkeys(row))
        for turn in row.get("messages") or ():
            turn_keys.update(turn)
    ordered = [key for key in _TURN_ORDER if key in turn_keys] + sorted(turn_keys - set(_TURN_ORDER))
    turn = pyarrow.struct([(key, pyarrow.int64() if key == "weight" else pyarrow.string()) for key in ordered])
    return pyarrow.schema([(key, pyarrow.list_(turn) if key == "messages" else pyarrow.string()) for key in row_keys])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in row.items():
        if key == "messages":
            made[key] = [{name: part if name == "weight" else _text(part) for name, part in turn.items()} for turn in value]
        else:
            made[key] = _text(value)
    return made


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
