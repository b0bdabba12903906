"""A sink that also notes when things happened, and leaves the spans of a request when it has ended.

The engine child speaks no tracing: the phases are seen from its events. What waits before the first token is queueing,
preparation and prefill; between it and the last lies decoding.
"""

from __future__ import annotations

from mlxplatform import tracing
from mlxplatform.inference.contract import Admitted, Event, Failed, Finished, InferenceRequest, Waiting
from workers.host.publisher import NumberedSink


class TracedSink:
    """Stands before a :class:`NumberedSink`; everything passes through unchanged."""

    def __init__(self, inner: NumberedSink, request: InferenceRequest) -> None:
        self._inner, self._request = inner, request
        self._began = tracing.now()
        self._admitted = self._first = 0

    def follow(self, emitted: list[int]) -> None:
        self._inner.follow(emitted)

    def __call__(self, events: list[Event]) -> None:
        now = tracing.now()
        for event in events:
            if isinstance(event, Admitted):
                self._admitted = now
            elif isinstance(event, Finished | Failed):
                self._leave_spans(event, now)
            elif not self._first and not isinstance(event, Waiting):
                self._first = now
        self._inner(events)

    def _leave_spans(self, end: Finished | Failed, now: int) -> None:
        request = self._request
        failed = end.code if isinstance(end, Failed) else ""
        usage = end.usage if isinstance(end, Finished) else None
        whole = tracing.record(
            f"gpu {request.kind}",
            request.trace,
            self._began,
            now,
            failed,
            request_id=request.id,
            model=request.model,
            tokens_prompt=usage.prompt if usage else None,
            tokens_cached=usage.cached if usage else None,
            tokens_completion=usage.completion if usage else None,
        )
        if self._admitted:
            tracing.record("prepare and admit", whole, self._began, self._admitted)
            tracing.record("wait and prefill", whole, self._admitted, self._first or now)
        if self._first:
            tracing.record("decode", whole, self._first, now)
