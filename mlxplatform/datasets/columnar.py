"""A version's rows as a Parquet file, in pieces, without holding more than a block of rows.

A first pass finds which keys occur; only those become columns. What has no fixed type (tools, tool calls, metadata, a
prompt that is a text here and a list of turns there) is kept as JSON text in its column, which is marked so that the
import turns it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

#: Rows in one row group.
GROUP = 10_000
#: Keys of a row or a turn whose value is of no fixed type.
AS_JSON = frozenset({"tools", "tool_calls", "metadata", "parallel_tool_calls"})
#: In the metadata of our files' schemas: that the file is ours, and that a column holds JSON text in every cell.
OURS, WRITTEN_AS_JSON = b"mlxplatform.rows", b"mlxplatform.json"
_TURN_ORDER = ("role", "content", "name", "tool_calls", "tool_call_id", "weight")

Rows = Iterable[Mapping[str, Any]]


def pieces(rows: Callable[[], Rows]) -> Iterator[bytes]:
    """``rows`` opens them anew each time it is called."""
    import pyarrow
    import pyarrow.parquet

    schema = _schema(rows())
    written = {field.name for field in schema if WRITTEN_AS_JSON in (field.metadata or {})}
    sink = _Sink()
    with pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        source = iter(rows())
        while block := list(islice(source, GROUP)):
            writer.write_table(pyarrow.Table.from_pylist([_plain(row, written) for row in block], schema=schema))
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

    row_keys: dict[str, bool] = {}  # whether it has other values than texts
    turn_keys: set[str] = set()
    for row in rows:
        for key, value in row.items():
            row_keys[key] = row_keys.get(key, key in AS_JSON) or not isinstance(value, str | None)
        for turn in row.get("messages") or ():
            turn_keys.update(turn)
    ordered = [key for key in _TURN_ORDER if key in turn_keys] + sorted(turn_keys - set(_TURN_ORDER))
    turn = pyarrow.struct([(key, pyarrow.int64() if key == "weight" else pyarrow.string()) for key in ordered])
    fields = [
        pyarrow.field("messages", pyarrow.list_(turn))
        if key == "messages"
        else pyarrow.field(key, pyarrow.string(), metadata={WRITTEN_AS_JSON: b"1"} if as_json else None)
        for key, as_json in row_keys.items()
    ]
    return pyarrow.schema(fields, metadata={OURS: b"1"})


def _plain(row: Mapping[str, Any], written: Collection[str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in row.items():
        if key == "messages":
            made[key] = [{name: part if name == "weight" else _text(part) for name, part in turn.items()} for turn in value]
        else:
            made[key] = _json(value) if key in written else value
    return made


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else _json(value)
