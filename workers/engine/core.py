"""The engine: our own waiting lines in front of the batch, one turn at a time.

One thread owns a :class:`Core`; every mlx call happens inside it. A turn admits what may run now, prefills
one chunk, decodes one token for everybody and returns one :class:`~workers.engine.protocol.Step`. Whatever
goes wrong in a turn, the generator is rebuilt and every sequence continues from its tokens: an exception in
the middle of a step leaves the KV cache one ahead of the tokens, and the survivors would go on with wrong
text without any error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import structlog

from workers.engine import batch as batching
from workers.engine import boundaries, schedule, suspicion
from workers.engine.adapters import AdapterRefused
from workers.engine.prefix_tree import shared_length
from workers.engine.protocol import Broken, Ended, Progress, Start, Step, Token
from workers.engine.sequence import Sequence

log = structlog.get_logger(__name__)

#: Prompts prefilled together.
PREFILL_GROUP = 8
#: First guess of the prefill speed, tokens per second, until one was measured.
FIRST_PREFILL_RATE = 300.0
#: Weight of a new measurement of the prefill speed.
RATE_WEIGHT = 0.3


@dataclass(frozen=True)
class Limits:
    """``prefill_target`` in seconds; ``context`` tokens of the model's window.

    ``kv_tokens`` is how many tokens of KV fit into the budget beside the weights; 0: not limited. ``row_slots``
    sequences run at once while all of them are rows, if that is more than ``slots``.
    """

    slots: int = 16
    prefill_target: float = 0.1
    row_share: int = 0
    context: int = 2048
    kv_tokens: int = 0
    row_slots: int = 0

    @property
    def most(self) -> int:
        """Sequences at once, whoever they are."""
        return max(self.slots, self.row_slots)


class Core:
    """Waiting lines, the batch, and what connects them."""

    def __init__(
        self,
        model: Any,
        chooser: batching.Chooser,
        limits: Limits,
        *,
        prefix: Any = None,
        make_batch: Callable[[], Any] | None = None,
    ):
        """``make_batch`` makes what runs the sequences, when that is not mlx-lm's continuous batch."""
        self.model = model
        self._make_batch = make_batch
        self.limits = limits
        self.prefix = prefix
        self._chooser = chooser
        self._interactive: deque[Sequence] = deque()
        self._rows: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._sequences: dict[int, Sequence] = {}
        self._stops: dict[tuple[int, ...], batching.StopSequences] = {}
        self._rate = FIRST_PREFILL_RATE
        self._pending: list[Broken] = []
        #: Steps for which rows that could begin have waited for others.
        self._gathered = 0
        #: Turns in a row in which those who decode were passed over.
        self._passed_over = 0
        self._quick = False
        self.rebuilds = 0
        self.preemptions = 0
        self.prefilled_tokens = 0
        self.emitted_tokens = 0
        self._trimmable = make_batch is None and batching.always_trims(model)
        self._batch = self._new_batch()

    # -- orders ------------------------------------------------------------------------------------------

    def start(self, order: Start) -> None:
        """Put a sequence at the end of its line."""
        if not order.prompt or order.max_tokens <= len(order.emitted):
            self._pending.append(Broken(order.seq, "invalid_prompt", "The prompt is empty or nothing is left to generate.", 400))
            return
        sequence = Sequence(order, list(order.emitted))
        self._sequences[order.seq] = sequence
        self._line(sequence).append(sequence)

    def cancel(self, *seqs: int) -> None:
        """Forget sequences wherever they are. A chat's prefill that got somewhere leaves its cache behind."""
        gone = [sequence for seq in seqs if (sequence := self._sequences.pop(seq, None)) is not None]
        running = [sequence for sequence in gone if sequence.uid is not None]
        self._take_out([sequence for sequence in running if sequence.is_row], keep=False)
        for sequence in running:
            if not sequence.is_row:
                self._take_out([sequence], keep=self.prefix is not None)
                if self.prefix is not None and sequence.cache is not None:
                    self.prefix.keep(sequence.order.adapter, sequence.tokens[: sequence.covered], sequence.cache)
        for line in (self._interactive, self._rows):
            for sequence in gone:
                if sequence in line:
                    line.remove(sequence)

    @property
    def idle(self) -> bool:
        return not self._sequences and not self._pending

    # -- one turn ----------------------------------------------------------------------------------------

    def step(self, *, quick: bool = False) -> Step:
        """One turn. Never raises for what a single sequence did. ``quick``: turns are so short that a newcomer need not
        make its first step alone."""
        self._quick = quick
        broken, self._pending = self._pending, []
        self._admit(broken)
        if not self._running:
            return Step([], broken=broken)
        newcomers = self._batch.prefilling and self._feed()
        tokens_before, seconds_before = self._batch.prefill_counters
        try:
            prompts, responses = self._batch.next_of_newcomers() if newcomers else self._batch.next()
        except Exception as error:  # whatever a model or kernel raises: the batch is unusable, its sequences are not
            log.exception("engine.step_failed", sequences=len(self._running))
            broken += self._recover(error)
            return Step([], broken=broken)
        tokens, seconds = self._batch.prefill_counters
        self._measure(tokens - tokens_before, seconds - seconds_before)
        return self._report(prompts, responses, broken)

    def _feed(self) -> bool:
        """Decide how much of the prompts this turn feeds, and whether it does nothing else."""
        standings, limits = self._standings(), self.limits
        chunk = schedule.chunk_tokens(standings, self._rate, limits.prefill_target)
        self._batch.set_prefill_tokens(chunk)
        rest = max(sequence.rest for sequence in self._running.values())
        newcomers = schedule.newcomers_first(standings, rest, chunk, self._passed_over, limits.row_share)
        self._passed_over = self._passed_over + 1 if newcomers else 0
        return newcomers

    def _report(self, prompts: list[Any], responses: list[Any], broken: list[Broken]) -> Step:
        tokens: list[Token] = []
        ended: list[Ended] = []
        progress: list[Progress] = []
        by_uid = {sequence.uid: sequence for sequence in self._running.values()}
        for response in prompts:
            sequence = by_uid[response.uid]
            self._on_prefill(sequence, response, progress)
        for response in responses:
            sequence = by_uid[response.uid]
            suspicion.after_token(sequence)
            fault = sequence.row.fault
            if fault is not None:
                broken.append(Broken(sequence.seq, fault.code, fault.message, fault.status))
                self._drop(sequence, finished=response.finish_reason is not None)
                continue
            if response.finish_reason != "stop":
                sequence.emitted.append(response.token)
                tokens.append(self._token(sequence, response))
            if response.finish_reason is not None:
                ended.append(Ended(sequence.seq, response.finish_reason))
                if self.prefix is not None and sequence.row.kept:
                    self.prefix.keep(sequence.order.adapter, response.all_tokens, response.prompt_cache)
                self._drop(sequence, finished=True)
        self.emitted_tokens += len(tokens)
        return Step(tokens, progress, ended, broken)

    def _on_prefill(self, sequence: Sequence, response: Any, progress: list[Progress]) -> None:
        done, total = response.progress
        covered = len(sequence.tokens) - total
        sequence.decoding, sequence.rest = response.end_of_prompt, total - done
        progress.append(Progress(sequence.seq, covered + done, covered + total, sequence.reused or 0))
        if self.prefix is not None and response.end_of_segment and covered + done == sequence.boundary and not sequence.decoding:
            cache, tokens = self._batch.extract_cache([sequence.uid])[sequence.uid]
            self.prefix.keep(sequence.order.adapter, tokens, cache)
            sequence.leads = 0

    @staticmethod
    def _token(sequence: Sequence, response: Any) -> Token:
        if response.logprobs is None:
            return Token(sequence.seq, response.token)
        chosen, ids, values = response.logprobs
        top = None if ids is None else list(zip(ids.tolist(), values.tolist(), strict=True))
        return Token(sequence.seq, response.token, chosen.item(), top)

    def _measure(self, tokens: int, seconds: float) -> None:
        self.prefilled_tokens += tokens
        if tokens >= schedule.CHUNK_FLOOR and seconds > 0:
            self._rate += RATE_WEIGHT * (tokens / seconds - self._rate)

    def _line(self, sequence: Sequence) -> deque[Sequence]:
        return self._rows if sequence.is_row else self._interactive

    # -- moving sequences --------------------------------------------------------------------------------

    def _standings(self) -> list[schedule.Standing]:
        return [schedule.Standing(s.seq, s.is_row, s.decoding) for s in self._running.values()]

    def _admit(self, broken: list[Broken]) -> None:
        if not self._interactive and (not self._rows or len(self._running) >= self.limits.most):
            return
        if any(sequence.alone for sequence in self._running.values()):
            return
        suspects = [line for line in (self._interactive, self._rows) if line and line[0].alone]
        if suspects:
            # Who has passed its place waits, with its cache, until every other suspect was tried as well.
            running = list(self._running.values())
            self._take_out(running, keep=True)
            for sequence in running:
                line = self._line(sequence)
                line.insert(sum(other.alone for other in line), sequence)
            self._insert(suspects[0].popleft(), broken)
            return
        standings, limits = self._standings(), self.limits
        turn = schedule.plan(standings, len(self._interactive), len(self._rows), limits.slots, limits.row_share, limits.row_slots)
        preempted = [self._running[seq] for seq in turn.preempt]
        self._take_out(preempted, keep=True)
        for sequence in preempted:
            sequence.preempted += 1
            self.preemptions += 1
            self._rows.appendleft(sequence)
        if turn.admit_rows and schedule.gathers(standings, turn.admit_rows, len(self._rows), self._gathered):
            self._gathered += 1
            return
        self._gathered = 0
        for line, count in ((self._interactive, turn.admit_interactive), (self._rows, turn.admit_rows)):
            for _ in range(count):
                if not self._fits(line[0]) or self._follows(line[0]):
                    return  # first in, first out: nobody overtakes who waits for memory or for a leader
                self._insert(line.popleft(), broken, line[0] if line else None)

    def _fits(self, sequence: Sequence) -> bool:
        """Whether the sequence's longest KV fits beside those of the running ones. One alone always may."""
        if not self.limits.kv_tokens or not self._running:
            return True
        reserved = sum(other.longest for other in self._running.values())
        return reserved + sequence.longest <= self.limits.kv_tokens

    def _follows(self, sequence: Sequence) -> bool:
        """Whether a running prefill is about to leave a beginning that this sequence can take over."""
        return any(
            other.leads and shared_length(other.tokens[: other.leads], sequence.tokens) == other.leads
            for other in self._running.values()
        )

    def _insert(self, sequence: Sequence, broken: list[Broken], following: Sequence | None = None) -> None:
        """Give a sequence to the generator, reusing what cache there is. One token is always left to feed."""
        tokens = sequence.tokens
        order = sequence.order
        cache, covered = sequence.cache, sequence.covered
        if cache is None and self.prefix is not None:
            cache, covered = self.prefix.fetch(order.adapter, tokens)
        cache, covered = batching.reusable(cache, covered, tokens, merged=self._make_batch is None)
        sequence.cache, sequence.covered = None, 0
        if sequence.reused is None:
            sequence.reused = min(covered, len(order.prompt))
        sequence.boundary = sequence.leads = 0
        if self.prefix is not None:
            cut_later = self._trimmable and not sequence.is_row
            sequence.boundary, sequence.leads = boundaries.choose(sequence, following, covered, cut_later=cut_later)
        rest, cut = tokens[covered:], sequence.boundary - covered
        segments = [rest[:cut], rest[cut:]] if cut > 0 else [rest]
        try:
            sequence.row = self._chooser.row(order, sequence.emitted)
            # The next turn of a conversation goes on from here; a row has no next turn.
            sequence.row.kept = self.prefix is not None and not sequence.is_row
            sequence.row.watched = sequence.row.watched and not self._quick
            (sequence.uid,) = self._batch.insert_segments(
                [segments],
                max_tokens=[sequence.tokens_left],
                caches=[cache] if cache is not None else None,
                all_tokens=[tokens[:covered]],
                samplers=[sequence.row],
                stop_sequences=[self._stop(order.eos)],
            )
        except AdapterRefused as refused:
            broken.append(Broken(sequence.seq, "adapter_mismatch", str(refused), 400, "adapter"))
            self._sequences.pop(sequence.seq, None)
            return
        except Exception:  # a grammar or option that fails here is this request's own trouble
            log.exception("engine.insert_failed", seq=sequence.seq)
            broken.append(Broken(sequence.seq, "engine_failed", "The engine cannot run this request.", 500))
            self._sequences.pop(sequence.seq, None)
            return
        sequence.decoding, sequence.rest = False, len(rest)
        self._running[sequence.seq] = sequence

    def _stop(self, eos: list[int]) -> batching.StopSequences:
        key = tuple(eos)
        if key not in self._stops:
            self._stops[key] = batching.StopSequences([[token] for token in eos])
        return self._stops[key]

    def _take_out(self, sequences: list[Sequence], *, keep: bool) -> None:
        """Remove running sequences from the generator, with their caches when ``keep``."""
        if not sequences:
            return
        taken = self._batch.remove([sequence.uid for sequence in sequences], return_prompt_caches=keep)
        for sequence in sequences:
            cache, known = taken.get(sequence.uid, (None, None)) if keep else (None, None)
            if known and cache:
                sequence.cache, sequence.covered = cache, len(known)
            self._running.pop(sequence.seq, None)
            sequence.uid, sequence.decoding, sequence.leads = None, False, 0

    def _drop(self, sequence: Sequence, *, finished: bool) -> None:
        if not finished:
            self._batch.remove([sequence.uid])
        self._running.pop(sequence.seq, None)
        self._sequences.pop(sequence.seq, None)

    # -- failure -----------------------------------------------------------------------------------------

    def _new_batch(self) -> Any:
        if self._make_batch is not None:
            return self._make_batch()
        return batching.Batch(
            self.model, self._chooser, slots=self.limits.most, prefill_group=PREFILL_GROUP, prefill_tokens=schedule.CHUNK_CAP
        )

    def _recover(self, error: Exception) -> list[Broken]:
        """Rebuild the generator and put every sequence back, except the one that is to blame."""
        self.rebuilds += 1
        survivors = list(self._running.values())
        self._running.clear()
        self._batch.close()
        self._batch = self._new_batch()
        culprit = suspicion.after_failure(survivors)
        if culprit is not None:
            self._sequences.pop(culprit.seq, None)
            log.error("engine.sequence_given_up", seq=culprit.seq, error=type(error).__name__)
            return [Broken(culprit.seq, "engine_failed", "The engine failed on this request.", 500)]
        for sequence in reversed(survivors):
            sequence.uid, sequence.cache, sequence.covered, sequence.decoding = None, None, 0, False
            self._line(sequence).appendleft(sequence)
        return []

    # -- idle moments ------------------------------------------------------------------------------------

    def rest(self) -> bool:
        """One piece of work for an idle moment: a prompt cache to SSD. False when there is none."""
        return self.prefix is not None and self.prefix.save_one()

    def flush(self) -> None:
        """Forget every prompt cache."""
        if self.prefix is not None:
            self.prefix.flush()

    def forget_adapter(self, name: str) -> None:
        """Drop the prompt caches made with an adapter that was unmounted."""
        if self.prefix is not None:
            self.prefix.forget_adapter(name)

    def resize(self, prefix_bytes: int, kv_tokens: int) -> None:
        """Other room than before."""
        self.limits = replace(self.limits, kv_tokens=kv_tokens)
        if self.prefix is not None:
            self.prefix.resize(prefix_bytes)

    def shrink(self) -> None:
        """Give memory back that nobody would miss at once."""
        if self.prefix is not None:
            self.prefix.shrink()
        mx.clear_cache()

    # -- figures -----------------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        interactive = sum(not s.is_row for s in self._running.values())
        return {
            "active": len(self._running),
            "active_interactive": interactive,
            "active_rows": len(self._running) - interactive,
            "waiting_interactive": len(self._interactive),
            "waiting_rows": len(self._rows),
            "prefill_tokens_per_s": round(self._rate, 1),
            "prefilled_tokens": self.prefilled_tokens,
            "emitted_tokens": self.emitted_tokens,
            "preemptions": self.preemptions,
            "rebuilds": self.rebuilds,
            "kv_bytes": self._batch.kv_bytes,
            "guessed_tokens": self._drafted("guessed"),
            "held_tokens": self._drafted("held"),
            **(self.prefix.stats() if self.prefix is not None else {}),
        }

    def _drafted(self, what: str) -> float:
        return float(getattr(getattr(self._chooser, "drafting", None), what, 0))

    def close(self) -> None:
        self._batch.close()
