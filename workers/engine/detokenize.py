"""Token ids to text, one at a time, without ever cutting a character in half.

Works on bytes: each id stands for a fixed byte string (byte-level BPE, or pieces with byte fallback), and
an incremental UTF-8 decoder says what is complete. U+FFFD appears only where the model's bytes are really
invalid. Tokenizers of neither kind go through the library's own stream.
"""

from __future__ import annotations

import codecs
import json
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

#: Tokenizers whose byte tables are kept; one per resident model and its neighbours.
_TABLES = 8


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """The printable stand-ins byte-level BPE uses for bytes, inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    spare = (byte for byte in range(256) if byte not in printable)
    table.update({chr(256 + index): byte for index, byte in enumerate(spare)})
    return table


def _decoder_steps(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    if spec is None:
        return []
    return list(spec.get("decoders", [])) if spec.get("type") == "Sequence" else [spec]


class TokenBytes:
    """The byte string of every id of one tokenizer. Shared, immutable apart from its memo."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.added: dict[int, str] = {token: entry.content for token, entry in added.items()}
        self.special: frozenset[int] = frozenset(token for token, entry in added.items() if entry.special)
        state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder is not None else None
        kinds = {step.get("type") for step in _decoder_steps(state)}
        self._byte_level = "ByteLevel" in kinds
        self._pieces = not self._byte_level and "ByteFallback" in kinds
        #: Pieces whose decoder strips the one space that encoding put before the first word.
        self.strips_first_space = self._pieces and "Strip" in kinds
        self._memo: dict[int, bytes] = {}

    @property
    def exact(self) -> bool:
        """Whether ids have byte strings of their own at all."""
        return self._byte_level or self._pieces

    def of(self, token: int) -> bytes:
        known = self._memo.get(token)
        if known is None:
            known = self._memo[token] = self._make(token)
        return known

    def text(self, token: int) -> str:
        """One token alone, for log-probabilities; bytes of half a character show as U+FFFD."""
        return self.of(token).decode("utf-8", errors="replace")

    def _make(self, token: int) -> bytes:
        if token in self.added:
            return self.added[token].encode()
        piece = self.tokenizer.id_to_token(token)
        if piece is None:
            # Rows of the output layer beyond the vocabulary (padding) stand for nothing.
            return b""
        if self._byte_level:
            table = _byte_of_character()
            if all(character in table for character in piece):
                return bytes(table[character] for character in piece)
            return piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()


_tables: dict[int, TokenBytes] = {}


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """The table of this tokenizer object, made once. Holds the tokenizer, so its identity stays its own."""
    table = _tables.get(id(tokenizer))
    if table is None:
        if len(_tables) >= _TABLES:
            _tables.pop(next(iter(_tables)))
        table = _tables[id(tokenizer)] = TokenBytes(tokenizer)
    return table


class Detokenizer:
    """Incremental decoding of one answer."""

    def __init__(self, table: TokenBytes):
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._first = table.strips_first_space
        self._stream = None if table.exact else DecodeStream(skip_special_tokens=False)

    def push(self, token: int) -> str:
        """The text that became complete with this token."""
        if self._stream is not None and token not in self._table.added:
            try:
                return self._stream.step(self._table.tokenizer, token) or ""
            except Exception:  # the Rust side raises bare Exception for an id it cannot place
                self._stream = DecodeStream(skip_special_tokens=False)
                return ""
        data = self._table.of(token)
        if self._first and data:
            self._first = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)
