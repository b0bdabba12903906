"""Compiled grammars as logits masks, one matcher per constrained sequence.

Compilation and refusal happened before admission (workers.prepare.grammar); here a grammar only decides, each
step, which tokens may come. The mask costs about 50 µs a token and row. A matcher that cannot go on raises
:class:`GrammarFault`, so that a half-followed constraint is never passed off as an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import llguidance.numpy as llg_numpy
import mlx.core as mx
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from workers.prepare.protocol import TextSpec


class GrammarFault(Exception):
    """A grammar could not go on: a limit was reached, or a token came that it does not allow."""


class GrammarMask:
    """The mask of one sequence.

    It reads the newest token, so it waits for the step before. The first call sees the token before the
    answer and consumes nothing; from then on every call consumes exactly one.
    """

    def __init__(self, matcher: LLMatcher, words: int, spec: TextSpec, emitted: Sequence[int]):
        self._matcher = matcher
        self._bits = llg_numpy.allocate_token_bitmask(1, words)
        self._stop_ids = spec.stop_ids
        self._opening, self._closing = spec.reasoning_ids
        self._reasoning = spec.grammar_from == "reasoning"
        self._may_reason = spec.grammar_from == "maybe_reasoning" and len(self._opening) == 1
        self._recent: list[int] = []
        self._fresh = True
        self._broken = False
        for token in emitted:
            self._consume(token)

    def apply(self, newest: mx.array, logits: mx.array) -> mx.array:
        """Logits [1, vocabulary] with impossible tokens at -inf; ``newest`` is the token they follow.

        Raises:
            GrammarFault: the grammar cannot go on. The caller ends this answer, and no other.
        """
        if self._broken:
            self._raise_fault()
        if not self._fresh:
            self._consume(int(newest[-1]))
        self._fresh = False
        return self._masked(logits)

    def forced(self, newest: int) -> list[int]:
        """Tokens that must follow ``newest``, which is consumed by this; none while anything is left to choose."""
        try:
            if not self._fresh:
                self._consume(newest)
            self._fresh = True
        except GrammarFault:
            self._broken = True  # told by the step that comes instead
            return []
        if self._reasoning or self._may_reason or self._matcher.is_stopped():
            return []
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced

    def after(self, tokens: Sequence[int], logits: mx.array) -> mx.array:
        """As :meth:`apply` behind forced tokens, which are consumed."""
        for token in tokens:
            self._consume(token)
        self._fresh = False
        return self._masked(logits)

    def back(self, count: int) -> None:
        """Take back the last ``count`` tokens consumed."""
        if not self._matcher.rollback(count):
            self._broken = True

    def _masked(self, logits: mx.array) -> mx.array:
        if self._reasoning:
            return logits
        allowed = self._allowed(logits.shape[-1])
        return mx.where(mx.array(allowed)[None], logits, mx.array(-mx.inf, dtype=logits.dtype))

    def _consume(self, token: int) -> None:
        if self._reasoning:
            self._recent = [*self._recent, token][-len(self._closing) :]
            if self._recent == self._closing:
                self._reasoning = False
            return
        if self._may_reason:
            self._may_reason = False
            if token == self._opening[0]:
                self._reasoning = True
                return
        if token in self._stop_ids or self._matcher.is_stopped():
            return
        if not self._matcher.consume_token(token):
            self._raise_fault()

    def _allowed(self, size: int) -> np.ndarray:
        """Boolean row over the output layer."""
        allowed = np.zeros(size, dtype=np.bool_)
        if not self._matcher.is_stopped():
            llg_numpy.fill_next_token_bitmask(self._matcher, self._bits, 0)
        if self._matcher.is_error():
            self._raise_fault()
        if self._matcher.is_stopped():
            # Nothing may follow: let the answer end.
            allowed[[token for token in self._stop_ids if token < size]] = True
            return allowed
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[:size]
        allowed[: bits.size] = bits.view(np.bool_)
        if self._may_reason:
            allowed[self._opening[0]] = True
        return allowed

    def _raise_fault(self) -> None:
        raise GrammarFault(self._matcher.get_error() or "the grammar refused a token")


class Grammars:
    """Makes masks for one model. Building the tokenizer's tree takes 10-300 ms, once."""

    def __init__(self, tokenizer_json: str, *, vocab_size: int, stop_ids: Sequence[int]):
        self._words = vocab_size
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(stop_ids) or None)

    def mask(self, spec: TextSpec, emitted: Sequence[int] = ()) -> GrammarMask | None:
        """The mask for one answer, None when it is free. ``emitted`` is what a sequence taken up again already said."""
        if not spec.grammar:
            return None
        return GrammarMask(LLMatcher(self._tokenizer, spec.grammar, log_level=0), self._words, spec, emitted)
