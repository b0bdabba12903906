"""From a line and its calls' results to the line's outcome. Pure: no SQL, no clock of its own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mlxplatform.batches import lines
from mlxplatform.batches.lines import BatchLineIn
from mlxplatform.batches.models import Batch, BatchLine
from mlxplatform.batches.protocols import LineProtocol, ParsedLine
from mlxplatform.batches.results import Outcome
from mlxplatform.inference.client import encoded
from mlxplatform.inference.contract import Refusal
from mlxplatform.rows.contract import RowRequest, RowResult


def parse(protocol: LineProtocol, line: BatchLineIn) -> ParsedLine:
    """Raises:
    Refusal: the body cannot run.
    """
    if line.body.get("stream"):
        raise Refusal(400, "streaming_unsupported", "Streaming is not possible in a batch.", param="stream")
    parsed = protocol.parse(line.body)
    for request in parsed.requests:
        encoded(request)  # what cannot be sent must be this line's error, not the end of all of them
    return parsed


def calls(batch: Batch, line: BatchLineIn, parsed: ParsedLine, model: str) -> list[RowRequest]:
    """The calls of a line; the same keys and ids at every attempt."""
    name = lines.request_id(batch.id, line.number)
    return [
        RowRequest(
            key=f"{line.number}:{index}",
            ordinal=line.number,
            request=msgspec.structs.replace(request, id=f"{name}-{index}", model=model, priority="row", project=batch.project),
        )
        for index, request in enumerate(parsed.requests)
    ]


def outcome(
    batch: Batch, protocol: LineProtocol, line: BatchLineIn, parsed: ParsedLine, answers: Sequence[RowResult], now: int
) -> Outcome:
    """What all calls of a line together come to: its answer, or the first call's error."""
    error = next((answer.error for answer in answers if answer.error is not None), None)
    if error is not None:
        return refused(batch, protocol, line, Refusal(error.status, error.code, error.message, param=error.param))
    outputs = [answer.output for answer in answers if answer.output is not None]
    body = parsed.render(lines.request_id(batch.id, line.number), outputs[0].model, now, outputs)
    return Outcome(line.number, BatchLine.SUCCEEDED, lines.answered(batch.dialect, batch.id, line, body), parsed.usage(outputs))


def refused(batch: Batch, protocol: LineProtocol, line: BatchLineIn, refusal: Refusal) -> Outcome:
    text = lines.refused(batch.dialect, batch.id, line, refusal.status, protocol.error(refusal))
    return Outcome(line.number, BatchLine.ERRORED, text)
