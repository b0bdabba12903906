"""A batch under way on a real platform, for tests that break something meanwhile, and what must be true of it after.

Knows how to start, watch and verify; not what goes wrong in between.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import httpx
import openai

from tests.system.stack import Stack, eventually

CHAT = "/v1/chat/completions"
#: Seconds a batch may take to end on two busy cores after something broke.
PATIENCE = 300.0


class BatchRun:
    """``lines`` short chats; some ask for what cannot run, so that both files have something in them."""

    def __init__(self, stack: Stack, lines: int, *, tokens: int = 12, bad_every: int = 40) -> None:
        self.stack, self.lines = stack, lines
        self.bad = {f"r{n}" for n in range(0, lines, bad_every)}
        requests = [
            {"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": self._body(n, tokens, f"r{n}" in self.bad)}
            for n in range(lines)
        ]
        raw = "".join(json.dumps(one) + "\n" for one in requests).encode()
        sdk = stack.openai()
        file = sdk.files.create(file=("in.jsonl", raw), purpose="batch")
        self.id = str(sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id)

    @staticmethod
    def _body(number: int, tokens: int, bad: bool) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"Say {number}"}]
        return {"model": "no-such-model" if bad else "tiny", "messages": messages, "max_tokens": tokens}

    def look(self) -> Any:
        """The batch, or None while nobody answers."""
        try:
            return self.stack.openai().batches.retrieve(self.id)
        except (openai.APIConnectionError, openai.InternalServerError, httpx.HTTPError):
            return None

    def finished(self) -> int:
        time.sleep(0.1)
        batch = self.look()
        return batch.request_counts.completed + batch.request_counts.failed if batch else 0

    def reach(self, lines: int, before: str) -> None:
        """Wait until so many lines are finished, and make sure that there is something left to break."""
        eventually(lambda: self.finished() >= lines, seconds=PATIENCE, what=f"{lines} lines before: {before}")
        assert self.finished() < self.lines, f"the batch was over before: {before}"

    def get_on(self, before: str, lines: int = 30) -> None:
        """Wait until so many more lines are finished than now: what broke last is overcome, by processes that are all there."""
        counts = eventually(self.look, seconds=PATIENCE, what=f"an answer before: {before}").request_counts
        self.reach(counts.completed + counts.failed + lines, before)

    def verify(self) -> None:
        """Every line has one outcome, in the right file, counted; the log has no gap and one end; nothing is left over."""

        def ended() -> Any:
            batch = self.look()
            return batch if batch and batch.status not in {"validating", "in_progress", "finalizing"} else None

        batch = eventually(ended, seconds=PATIENCE, what="the end of the batch")
        assert batch.status == "completed", batch
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (self.lines, self.lines - len(self.bad), len(self.bad))
        answered, refused = (self._ids(file) for file in (batch.output_file_id, batch.error_file_id))
        assert refused == Counter(self.bad)
        assert answered == Counter(f"r{n}" for n in range(self.lines)) - Counter(self.bad)
        sql = self.stack.sql
        ((job_id,),) = sql("select job_id from batches_batch where id = ?", self.id)
        eventually(lambda: sql("select state from jobs_job where id = ?", job_id) == [("done",)], what="the end of its job")
        events = sql("select seq, type from jobs_jobevent where job_id = ? order by seq", job_id)
        assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
        assert [kind for _, kind in events if kind in {"done", "failed", "cancelled"}] == ["done"]
        for table in ("batches_batchline", "rows_rowcall", "rows_rowchunk"):
            assert sql(f"select count(*) from {table}") == [(0,)], table

    def _ids(self, file_id: str) -> Counter[str]:
        raw = self.stack.openai().files.content(file_id).content
        return Counter(json.loads(one)["custom_id"] for one in raw.splitlines())
