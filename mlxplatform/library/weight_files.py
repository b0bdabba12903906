"""What a safetensors file says of itself, from its header only; and which of a directory's files are its weights.

A header is somebody else's text: lengths are checked before they are believed, every entry must describe exactly
the bytes it points at, and the file must end where its last tensor does. Reads no weight, except a few samples that
tell two files of the same shape apart.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Longest header believed; real ones are below 20 MB.
_MAX_HEADER = 100 << 20
#: Longest JSON file read beside the weights, bytes; an index of a very large model has some 10 MB.
_MAX_JSON = 64 << 20
#: Bytes of weights sampled at the start, middle and end of each file.
_SAMPLE = 4096
#: Bits of one element, by the format's names of types.
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class BrokenWeights(Exception):
    """The file is no whole safetensors file; the message says what is wrong, without a path."""


@dataclass(frozen=True)
class Tensor:
    """One entry of a header. ``kind`` is one of :data:`BITS`."""

    kind: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * BITS[self.kind] // 8


@dataclass(frozen=True)
class Header:
    """``bytes`` is the size of the whole file, ``raw`` the header as it stands there, ``format`` who says to have written it."""

    tensors: Mapping[str, Tensor]
    raw: bytes
    bytes: int
    format: str = ""


def header(path: Path) -> Header:
    """
    Raises:
        BrokenWeights: not a whole safetensors file.
        OSError: not readable.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise BrokenWeights("a weight file has no valid header")
        raw = file.read(length)
    try:
        entries = json.loads(raw)
        tensors, end = {}, 0
        for name, entry in entries.items():
            if name != "__metadata__":
                tensors[name], stops = _tensor(entry)
                end = max(end, stops)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BrokenWeights("a weight file has no valid header") from None
    if size != 8 + length + end:
        raise BrokenWeights("a weight file is truncated")
    said = entries.get("__metadata__")
    return Header(tensors, raw, size, str(said.get("format", "")) if isinstance(said, dict) else "")


def _tensor(entry: Any) -> tuple[Tensor, int]:
    """(what it is, where its bytes end).

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it describes nothing that could be there.
    """
    kind, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise ValueError
    tensor = Tensor(kind, tuple(shape))
    if 8 * (end - start) != tensor.elements * BITS[kind]:
        raise ValueError
    return tensor, end


def samples(path: Path) -> bytes:
    """A digest of a few pieces of the file: weights that were trained on differ in them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        pieces = []
        for start in (0, size // 2, max(0, size - _SAMPLE)):
            file.seek(start)
            pieces.append(file.read(_SAMPLE))
    return hashlib.sha256(b"".join(pieces)).digest()


def of(folder: Path) -> list[Path]:
    """The weight files of a directory, or none when its index names one that is not there."""
    index = json_object(folder / "model.safetensors.index.json")
    try:
        if index and isinstance(index.get("weight_map"), dict):
            names = sorted({str(name) for name in index["weight_map"].values()})
            files = [folder / Path(name).name for name in names]
            return files if all(file.is_file() for file in files) else []
        return sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith("adapter") and file.is_file())
    except (OSError, ValueError):  # names no file system takes
        return []


def json_object(path: Path) -> dict[str, Any] | None:
    """A JSON file of a model directory; None when it is missing, huge, a pipe, or no object."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_JSON:
            return None
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
