"""Log-probabilities of given answers after a prompt: one prefill, no generation.

The prompt's cache is kept afterwards, so that the next question about the same state prefills only what
differs. Long prompts are worked off chunk by chunk, so that streams beside them go on.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from workers.engine import batch as batching
from workers.engine.prefix_cache import PrefixCache
from workers.engine.protocol import Score, Scores


class Scoring:
    """One question under way."""

    def __init__(self, order: Score, model: Any, prefix: PrefixCache | None, slot: int = 0):
        self.order, self._model, self._prefix, self.slot = order, model, prefix, slot
        cache, covered = prefix.fetch(order.adapter, order.prompt) if prefix is not None else (None, 0)
        self.cached = covered
        self._fed = covered
        layers = cache if cache is not None else batching.make_prompt_cache(model)
        # Merging copies: what is stored must not be written to.
        self._cache = [layer.merge([layer]) for layer in layers]

    def step(self, chunk: int) -> Scores | None:
        """Feed up to ``chunk`` tokens; the answer once the prompt is through."""
        rest = self.order.prompt[self._fed : self._fed + chunk]
        self._fed += len(rest)
        logits = self._model(mx.array([rest]), cache=self._cache)[:, -1]
        if self._fed < len(self.order.prompt):
            mx.eval([layer.state for layer in self._cache])
            return None
        return Scores(self.order.seq, self._score(logits), self.cached)

    def _score(self, logits: mx.array) -> list[float]:
        first = _log_softmax(logits)[0]
        labels = self.order.labels
        scores: list[float] = mx.take(first, mx.array([label[0] for label in labels])).tolist()  # type: ignore[assignment]
        single = [layer.extract(0) for layer in self._cache]
        for index, label in enumerate(labels):
            if len(label) > 1:
                cache = [layer.merge([layer]) for layer in single]
                following = _log_softmax(self._model(mx.array([label[:-1]]), cache=cache)[0])
                scores[index] += float(mx.take_along_axis(following, mx.array(label[1:])[:, None], axis=-1).sum().item())  # type: ignore[arg-type]
        if self._prefix is not None:
            self._prefix.keep(self.order.adapter, self.order.prompt, single)
        return scores


def _log_softmax(logits: mx.array) -> mx.array:
    values = logits.astype(mx.float32)
    return values - mx.logsumexp(values, axis=-1, keepdims=True)
