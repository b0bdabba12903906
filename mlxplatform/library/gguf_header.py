"""What a GGUF file says of itself, from its first bytes only: metadata without the long lists, and tensor types.

Reads no weight and imports no mlx. Everything in the file is somebody else's: lengths are checked before they are
believed, and a file that ends early, nests strangely or has a tensor beyond its end is unreadable, not a crash: the
library that reads the weights believes what it is told, and dies of it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
#: Longest header believed; vocabularies of 250,000 tokens with merges take some 15 MB.
_MAX_HEADER = 128 << 20
#: Longest text kept, characters; lists of more than a few entries are only counted.
_MAX_TEXT, _MAX_LIST = 1 << 20, 16
_MAX_ENTRIES = 100_000
_SIMPLE = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9
#: Tensor types by number, of those our importer reads, and of others only so that they can be named.
READABLE = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 30: "BF16"}
_NAMED = {**READABLE, 6: "Q5_0", 7: "Q5_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 39: "MXFP4"}
#: Bytes of a block of weights and how many it holds, of the types our importer reads.
_BLOCKS = {0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 8: (34, 32), 30: (2, 1)}
#: Where weights begin: at the next multiple of this many bytes, unless the file says another.
_ALIGNMENT = 32
#: Tokenizer splits our importer reproduces exactly.
PRE_TOKENIZERS = {"smollm", "starcoder", "refact", "command-r", "gpt-2", "default", "llama-bpe", "llama3", "qwen2"}


class NotGGUF(Exception):
    """The file is no GGUF file that can be read; the message says what is wrong, without a path."""


@dataclass(frozen=True)
class Header:
    """``types`` counts tensors by type; lists in ``metadata`` longer than a few entries are their length."""

    metadata: dict[str, Any]
    types: dict[str, int] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def obstacle(self) -> str:
        """Why our importer would refuse it; empty when the header promises that it will not."""
        if self.architecture != "llama":
            return f"its architecture is {self.architecture or 'not stated'}, and only llama is imported"
        if self.metadata.get("tokenizer.ggml.model") != "gpt2":
            return f"its tokenizer is of type {self.metadata.get('tokenizer.ggml.model')}, and only byte-level BPE is imported"
        pre = self.metadata.get("tokenizer.ggml.pre", "default")
        if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
            return f"its pre-tokenizer {str(pre)[:40]} is not known here"
        others = sorted(set(self.types) - set(READABLE.values()))
        if others:
            return f"its weights are packed as {', '.join(others)}, which mlx does not read"
        return ""


def read(path: Path) -> Header:
    """
    Raises:
        NotGGUF: not a GGUF file, of a version we do not know, or cut off.
        OSError: not readable.
    """
    with path.open("rb") as file:
        reader = _Reader(file)
        if reader.take(4) != MAGIC:
            raise NotGGUF("it does not begin as a GGUF file does")
        version = reader.number("<I")
        if version not in {2, 3}:
            raise NotGGUF(f"it is of version {version}")
        tensors, entries = reader.number("<Q"), reader.number("<Q")
        if max(tensors, entries) > _MAX_ENTRIES:
            raise NotGGUF("its header makes no sense")
        metadata = {}
        for _ in range(entries):
            key = reader.text()
            metadata[key] = reader.value(reader.number("<I"))
        types: dict[str, int] = {}
        last = 0
        for _ in range(tensors):
            name = reader.text()
            weights = math.prod(reader.number("<Q") for _ in range(reader.number("<I", most=8)))
            kind, offset = reader.number("<I"), reader.number("<Q")
            size, held = _BLOCKS.get(kind, (0, 1))
            last = max(last, offset + weights // held * size)
            if name:
                shown = _NAMED.get(kind, f"type {kind}")
                types[shown] = types.get(shown, 0) + 1
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise NotGGUF("its header makes no sense")
        if tensors and -(-reader.taken // alignment) * alignment + last > path.stat().st_size:
            raise NotGGUF("it is cut off: weights lie beyond its end")
        return Header(metadata, types)


class _Reader:
    """Sequential reads with a bound on how much of the file is a header."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._left = _MAX_HEADER

    @property
    def taken(self) -> int:
        """Bytes read so far."""
        return _MAX_HEADER - self._left

    def take(self, count: int) -> bytes:
        self._left -= count
        if count < 0 or self._left < 0:
            raise NotGGUF("its header makes no sense")
        found = self._file.read(count)
        if len(found) != count:
            raise NotGGUF("it ends within its header")
        return found

    def number(self, form: str, most: int | None = None) -> int:
        value = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if most is not None and value > most:
            raise NotGGUF("its header makes no sense")
        return int(value)

    def text(self) -> str:
        return self.take(self.number("<Q", most=_MAX_TEXT)).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind in _SIMPLE:
            return struct.unpack(_SIMPLE[kind], self.take(struct.calcsize(_SIMPLE[kind])))[0]
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            raise NotGGUF(f"its metadata has a value of the unknown type {kind}")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in _SIMPLE and count > _MAX_LIST:
            self.take(count * struct.calcsize(_SIMPLE[inner]))
            return count
        if inner not in _SIMPLE and inner != _TEXT:
            raise NotGGUF("its metadata nests lists")
        found = []
        for _ in range(count):
            item = self.value(inner)
            if count <= _MAX_LIST:
                found.append(item)
        return found if count <= _MAX_LIST else count
