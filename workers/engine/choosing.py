"""Choosing the next token of every row of a step in one call, and never raising.

Penalties, bias and grammar masks act on single rows and only where asked for; drawing is one vectorised call
for the whole batch. A row whose own processors fail is marked with a fault and goes on unprocessed for this
one step, after which the core ends it: raising here would leave the KV cache of every other row one ahead of
its tokens.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import structlog
from mlx_lm.models.cache import TokenBuffer

from workers.engine.adapters import AdapterRefused, Adapters
from workers.engine.ahead import Forced, Guessed
from workers.engine.batch import DEAD_END, OPTIONS_FAILED, Ahead, Details, Row
from workers.engine.constraints import GrammarFault, Grammars
from workers.engine.drafting import Drafting
from workers.engine.logprobs import summarize
from workers.engine.penalties import processors
from workers.engine.protocol import Start
from workers.engine.sampling import BatchSampler, row_sampler

log = structlog.get_logger(__name__)


class RowChooser:
    """The chooser of one engine; owned by its main thread."""

    def __init__(
        self,
        vocab_size: int,
        model_dir: Path | None = None,
        adapters: Adapters | None = None,
        *,
        goes_ahead: bool = False,
        drafting: Drafting | None = None,
    ):
        """``goes_ahead``: the model's caches can be cut, so a row alone may settle several tokens at once."""
        self.vocab_size = vocab_size
        self.drafting = drafting
        self._goes_ahead = goes_ahead
        self._sampler = BatchSampler()
        self._model_dir = model_dir
        self._adapters = adapters
        self._grammars: dict[tuple[int, ...], Grammars] = {}

    def row(self, order: Start, emitted: list[int]) -> Row:
        """A row that goes on after ``order``'s prompt and ``emitted``."""
        sampling = order.sampling
        row = Row(
            seq=order.seq,
            sampler=row_sampler(
                sampling, vocab_size=self.vocab_size, protected=[*order.eos, *order.protected], step=len(emitted)
            ),
            processors=processors(sampling, vocab_size=self.vocab_size),
            history=(order.prompt + emitted)[:-1],
            logprobs=order.logprobs,
            pictures=order.pictures,
            prompt=len(order.prompt),
            watched=order.priority == "interactive",
        )
        if order.adapter is not None:
            if self._adapters is None:
                raise AdapterRefused("This engine serves no adapters.")
            row.adapter = self._adapters.slot(order.adapter)
        if order.grammar is not None and self._model_dir is not None:
            row.constraint = self._grammar(order).mask(order.grammar, emitted)
        row.ahead = self._ahead(order, row)
        return row

    def _ahead(self, order: Start, row: Row) -> Ahead | None:
        if not self._goes_ahead or row.processors or row.logprobs is not None:
            return None
        if row.constraint is not None:
            return Forced(row, row.constraint) if order.grammar is not None and order.grammar.jump else None
        return Guessed(row, self.drafting) if self.drafting is not None else None

    def select(self, rows: list[Row]) -> None:
        if self._adapters is not None:
            self._adapters.select([row.adapter for row in rows])

    def _grammar(self, order: Start) -> Grammars:
        """The grammar engine for the model's tokenizer; built at first use, 10 to 300 ms."""
        key = tuple(order.eos)
        if key not in self._grammars:
            assert self._model_dir is not None
            text = (self._model_dir / "tokenizer.json").read_text(encoding="utf-8")
            self._grammars[key] = Grammars(text, vocab_size=self.vocab_size, stop_ids=order.eos)
        return self._grammars[key]

    def __call__(self, rows: list[Row], inputs: mx.array, logits: mx.array) -> tuple[mx.array, list[Details | None]]:
        if any(row.processors or row.constraint for row in rows):
            logits = self._process(rows, inputs, logits)
        if all(row.sampler.greedy for row in rows):
            tokens = mx.argmax(logits, axis=-1)
        else:
            tokens = self._sampler.sample(logits, [row.sampler for row in rows])
        summary = summarize(logits, tokens, [row.logprobs for row in rows])
        if summary is None:
            return tokens, [None] * len(rows)
        chosen, ids, values = summary
        details: list[Details | None] = [
            None if row.logprobs is None else (chosen[i], ids[i, : row.logprobs], values[i, : row.logprobs])
            for i, row in enumerate(rows)
        ]
        return tokens, details

    def _process(self, rows: list[Row], inputs: mx.array, logits: mx.array) -> mx.array:
        out = []
        for i, row in enumerate(rows):
            own = logits[i : i + 1]
            try:
                if row.processors:
                    if row.buffer is None:
                        row.buffer = TokenBuffer(row.history)
                    context = row.buffer.update_and_fetch(inputs[i : i + 1])
                    for process in row.processors:
                        own = process(context, own)
                if row.constraint is not None:
                    own = row.constraint.apply(inputs[i : i + 1], own)
            except GrammarFault:
                log.exception("engine.row_failed", seq=row.seq)
                row.fault = DEAD_END
            except Exception:  # whatever a processor does wrong stays with its own row
                log.exception("engine.row_failed", seq=row.seq)
                row.fault = OPTIONS_FAILED
            if row.fault:
                own = logits[i : i + 1]
            out.append(own)
        return mx.concatenate(out, axis=0)
