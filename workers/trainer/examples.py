"""Training rows → token ids and which of them count.

Chats are rendered by the same code that serves them, so that a trained turn looks exactly as it will when
the model is asked. Where a turn begins is found by rendering the conversation up to it with the generation
prompt and taking the longest common prefix of the ids; at least one token of every learned turn counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlxplatform.inference.contract import Message, Refusal, Tool
from mlxplatform.training import rows
from workers.prepare import messages
from workers.prepare.encode import PromptEncoder
from workers.prepare.model import load
from workers.prepare.template import render
from workers.trainer.report import Explained

#: Upper bounds of the token-length histogram.
BUCKETS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class Tokens:
    """One sequence: ids, and 1 where the next-token loss of that id counts."""

    ids: np.ndarray
    mask: np.ndarray


@dataclass
class Collected:
    """Sequences of one file and what became of its rows. ``rejected`` runs beside ``chosen`` for preferences."""

    chosen: list[Tokens] = field(default_factory=list)
    rejected: list[Tokens] = field(default_factory=list)
    truncated: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        names = [*(f"<={bucket}" for bucket in BUCKETS), f">{BUCKETS[-1]}"]
        histogram = Counter(names[bisect_left(BUCKETS, length)] for length in self.lengths)
        return {
            "rows_used": len(self.chosen),
            "rows_truncated": self.truncated,
            "rows_skipped": dict(self.skipped),
            "trainable_tokens": int(sum(int(t.mask.sum()) for t in self.chosen)),
            "tokens": int(sum(t.ids.size for t in self.chosen)),
            "longest": max(self.lengths, default=0),
            "lengths": {
                bucket: histogram[bucket] for bucket in (*(f"<={b}" for b in BUCKETS), f">{BUCKETS[-1]}") if histogram[bucket]
            },
        }


class Encoder:
    """Encodes rows for one model directory."""

    def __init__(self, folder: Path, *, limit: int, mask_prompt: bool, every_turn: bool):
        self._model = load(folder)
        self._encode = PromptEncoder(self._model)
        self._source = self._model.templates.get("default", "")
        self._limit, self._mask_prompt, self._every_turn = limit, mask_prompt, every_turn

    def collect(self, found: Iterable[tuple[int, dict[str, Any]]]) -> Collected:
        """Encode every row; those that keep nothing to learn after truncation are counted, not used."""
        out = Collected()
        for _, row in found:
            example = rows.example(row)
            try:
                chosen = self._text(example.text) if example.text else self._chat(example.turns, example.weights, example.tools)
                rejected = self._chat(example.rejected, example.rejected_weights, example.tools) if example.rejected else None
            except Refusal:
                out.skipped["template_refused"] += 1
                continue
            out.lengths.append(int(chosen.ids.size))
            pair = [side for side in (chosen, rejected) if side is not None]
            cut = [Tokens(side.ids[: self._limit], side.mask[: self._limit]) for side in pair]
            if not all(side.mask[1:].any() for side in cut):
                out.skipped["no_trainable_tokens"] += 1
                continue
            out.truncated += any(side.ids.size > self._limit for side in pair)
            out.chosen.append(cut[0])
            if rejected is not None:
                out.rejected.append(cut[1])
        return out

    def _text(self, text: str) -> Tokens:
        ids = self._encode.encode_raw(text)
        eos = self._model.special.get("eos_token")
        end = self._model.tokenizer.token_to_id(eos) if eos else None
        if end is not None and ids[-1:] != [end]:
            ids = [*ids, end]
        return _tokens(ids, np.ones(len(ids), np.int8))

    def _chat(self, turns: list[Message], weights: list[int], tools: list[Tool]) -> Tokens:
        if not self._source:
            raise Explained("no_chat_template", "This model has no chat template; train it on rows with a text key.")
        ids = self._ids(turns, tools, answer=False)
        mask = np.zeros(len(ids), np.int8)
        if not self._mask_prompt:
            mask[:] = 1
            return _tokens(ids, mask)
        learned = [index for index, weight in enumerate(weights) if weight]
        for index in learned if self._every_turn else learned[-1:]:
            before = self._ids(turns[:index], tools, answer=True)
            through = ids if index == len(turns) - 1 else self._ids(turns[: index + 1], tools, answer=False)
            start = min(_shared(before, ids), len(through) - 1)
            mask[start : max(_shared(through, ids), start + 1)] = 1
        return _tokens(ids, mask)

    def _ids(self, turns: list[Message], tools: list[Tool], *, answer: bool) -> list[int]:
        """Ids of a conversation, rendered as serving renders it; ``answer`` opens the assistant's next turn."""
        can = messages.UNPROBED
        if messages.uses_tools(turns, tools):
            can = messages.abilities(self._source, tuple(sorted(self._model.special.items())))
        said, described = messages.conversation(turns, tools, can)
        text = render(
            self._source,
            {
                **self._model.special,
                "messages": self._encode.seal(said),
                "tools": described,
                "documents": None,
                "add_generation_prompt": answer,
            },
        )
        return self._encode.encode_rendered(text)


def _tokens(ids: list[int], mask: np.ndarray) -> Tokens:
    return Tokens(np.asarray(ids, np.int32), mask)


def _shared(left: list[int], right: list[int]) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    differ = np.flatnonzero(np.asarray(left[:length]) != np.asarray(right[:length]))
    return int(differ[0]) if differ.size else length
