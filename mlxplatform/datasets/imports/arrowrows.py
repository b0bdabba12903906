"""Rows of Parquet and Arrow files, the latter as the datasets library saves them to disk. Read in batches.

Columnar files give every row every column: what is null there was never said, so it is left out, at every level.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from mlxplatform.datasets.columnar import AS_JSON
from mlxplatform.datasets.imports.items import Item, Unreadable, named

#: Rows decoded at once.
BATCH = 1000


def read(stream: BinaryIO, form: str, name: str) -> Iterator[Item]:
    """Raises Unreadable."""
    import pyarrow

    number = 0
    try:
        for batch in _parquet(stream) if form == "parquet" else _arrow(stream):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", _said(row)
    except (pyarrow.ArrowException, OSError, ValueError, NotImplementedError):
        kind = {"parquet": "Parquet", "arrow": "Arrow"}[form]
        where = f" after row {number}" if number else ""
        raise Unreadable(f"not_{form}", f"{named(name)} is no {kind} file that can be read, or is damaged{where}.") from None


def _parquet(stream: BinaryIO) -> Iterator[Any]:
    import pyarrow.parquet

    # No buffering ahead of whole row groups: memory stays flat whatever the file's size.
    yield from pyarrow.parquet.ParquetFile(stream, pre_buffer=False).iter_batches(batch_size=BATCH)


def _arrow(stream: BinaryIO) -> Iterator[Any]:
    """The streaming form, which save_to_disk writes, or the file form."""
    import pyarrow.ipc

    if stream.read(6) == b"ARROW1":
        stream.seek(0)
        file = pyarrow.ipc.open_file(stream)
        batches = (file.get_batch(place) for place in range(file.num_record_batches))
    else:
        stream.seek(0)
        batches = iter(pyarrow.ipc.open_stream(stream))
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH):
            yield batch.slice(start, BATCH)


def _said(value: Any, key: str = "") -> Any:
    """Without keys whose value is null, except a turn's content: there null is a statement. JSON columns as values."""
    if isinstance(value, dict):
        return {name: _said(entry, name) for name, entry in value.items() if entry is not None or name == "content"}
    if isinstance(value, list):
        return [_said(entry) for entry in value]
    if key in AS_JSON and isinstance(value, str):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value
