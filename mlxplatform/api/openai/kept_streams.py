"""Kept answers that were streamed: where their events are now, and the end of those whose process died.

Chat completions and Responses keep streams in the same way; each gives its own way to end a row.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from mlxplatform.inference import history
from mlxplatform.inference.contract import Failed, Finished, Refusal
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.inference.recording import Numbered, ending_of, follow_log, recording_of, replay

#: Ends a row whose own process died, from all of its events.
EndOrphan = Callable[[StoredAnswer, Sequence[Numbered]], Awaitable[None]]


def is_end(batch: Sequence[Numbered]) -> bool:
    return bool(batch) and isinstance(batch[-1][1], (Finished, Failed))


class KeptStreams:
    """``what`` names such an answer to people."""

    def __init__(self, what: str, end_orphan: EndOrphan) -> None:
        self._what = what
        self._end_orphan = end_orphan

    async def settled(self, row: StoredAnswer) -> StoredAnswer:
        """The row as it is now: one left open by a process that died is ended from its log."""
        if row.status not in history.OPEN or recording_of(row.id) is not None:
            return row
        events = await ending_of(row.id, row.created_at)
        if events is None:
            return row
        await self._end_orphan(row, events)
        return await history.off_loop(history.load, row.id, row.kind, row.project) or row

    async def events_of(self, row: StoredAnswer, timeout: float) -> AsyncGenerator[list[Numbered], None]:
        """A row's events from the first on, wherever they are.

        Raises:
            Refusal: the answer was never streamed.
        """
        recording = recording_of(row.id)
        if recording is not None:
            return recording.follow(timeout)
        if row.status in history.OPEN:
            return self._ending(row, timeout)
        if row.events is None:
            message = f"This {self._what} was not created as a stream, so it cannot be streamed."
            raise Refusal(400, "invalid_value", message, param="stream")
        return replay(list(enumerate(history.unpack_events(bytes(row.events)), start=1)))

    async def _ending(self, row: StoredAnswer, timeout: float) -> AsyncGenerator[list[Numbered], None]:
        """Follow the log, and end the row before its end is shown."""
        seen: list[Numbered] = []
        async for batch in follow_log(row.id, timeout):
            seen += batch
            if is_end(batch):
                await self._end_orphan(row, seen)
            yield batch
