"""Compiled grammars as logits masks, one matcher per constrained sequence.

Compilation and refusal happened before admission (workers.prepare.grammar); here a grammar only decides, each
step, which tokens may come. The mask costs about 50 µs a token and row. Nothing raises during a step: a
matcher that fails records its fault and lets the sequence end.
"""

from __future__ import annotations

from collections.abc import Sequence

import llguidance.numpy as llg_numpy
import mlx.core as mx
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from workers.prepare.protocol import TextSpec


class GrammarMask:
    """Logits processor of one sequence: (tokens so far, logits [1, vocabulary]) to masked logits.

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
        #: Why the grammar could not go on; None while all is well.
        self.fault: str | None = matcher.get_error() or None
        for token in emitted:
            self._consume(token)

    @property
    def binding(self) -> bool:
        """Whether the grammar already restricts what comes next."""
        return not self._reasoning

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        if not self._fresh:
            self._consume(int(tokens[-1]))
        self._fresh = False
        if self._reasoning:
            return logits
        allowed = self._allowed(logits.shape[-1])
        return mx.where(mx.array(allowed)[None], logits, mx.array(-mx.inf, dtype=logits.dtype))

    def apply(self, newest: mx.array, logits: mx.array) -> mx.array:
        """As a call, for generators that keep no history: ``newest`` is the token the logits follow."""
        return self(newest, logits)

    def forced(self) -> list[int]:
        """Tokens that must come next whatever is sampled; empty when there is a choice."""
        if self._reasoning or self._may_reason or self.fault is not None:
            return []
        return list(self._matcher.compute_ff_tokens())

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
        if token in self._stop_ids or self._matcher.is_stopped() or self.fault is not None:
            return
        if not self._matcher.consume_token(token):
            self.fault = self._matcher.get_error() or "the grammar refused a token"

    def _allowed(self, size: int) -> np.ndarray:
        """Boolean row over the output layer."""
        if self.fault is None and not self._matcher.is_stopped():
            llg_numpy.fill_next_token_bitmask(self._matcher, self._bits, 0)
            self.fault = self._matcher.get_error() or None
        allowed = np.zeros(size, dtype=np.bool_)
        if self.fault is not None or self._matcher.is_stopped():
            # Nothing may follow: let the answer end.
            allowed[[token for token in self._stop_ids if token < size]] = True
            return allowed
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[:size]
        allowed[: bits.size] = bits.view(np.bool_)
        if self._may_reason:
            allowed[self._opening[0]] = True
        return allowed


class Grammars:
    """Makes masks for one model. Building the tokenizer's tree takes 10-300 ms, once."""

    def __init__(self, tokenizer_json: str, *, vocab_size: int, stop_ids: Sequence[int]):
        self._words = vocab_size
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(stop_ids) or None)

    def mask(self, spec: TextSpec, emitted: Sequence[int] = ()) -> GrammarMask | None:
        """The mask for one answer, None when it is free. ``emitted`` is what a sequence taken up again already said."""
        if not spec.grammar:
            return None
        return GrammarMask(LLMatcher(self._tokenizer, spec.grammar), self._words, spec, emitted)
