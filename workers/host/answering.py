"""Reports of an engine child to events of the requests they are about. Writes the journal; sends nothing anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlxplatform.inference.contract import Embedded, Event, Failed, Finished, Scored, Usage
from workers.engine import protocol
from workers.host.journal import Entry


@dataclass(frozen=True)
class Answer:
    """News of one request. ``over``: nothing follows. ``halt``: the child does not know yet that it is over."""

    entry: Entry
    events: list[Event]
    over: bool = False
    halt: bool = False


def of_step(step: protocol.Step, entries: Mapping[int, Entry]) -> list[Answer]:
    """What one turn of the child means, for requests that are still here."""
    for progress in step.progress:
        if (entry := entries.get(progress.seq)) is not None:
            entry.prefilled = progress.done
            entry.cached = entry.cached or progress.cached
    news: dict[int, list[Event]] = {}
    answers: list[Answer] = []
    over: set[int] = set()
    for token in step.tokens:
        entry = entries.get(token.seq)
        if entry is None or token.seq in over:
            continue
        events, stop = entry.take(token)
        if events:
            news.setdefault(entry.seq, []).extend(events)
        if stop is not None:
            over.add(entry.seq)
            answers.append(Answer(entry, news.pop(entry.seq, []) + entry.finish("stop", stop), over=True, halt=True))
    for run in step.runs:
        entry = entries.get(run.seq)
        if entry is None:
            continue
        events, stop = entry.take_run(run.ids)
        if stop is not None:
            over.add(entry.seq)
            answers.append(Answer(entry, events + entry.finish("stop", stop), over=True, halt=True))
        elif events:
            news[entry.seq] = events
    for ended in step.ended:
        if (entry := entries.get(ended.seq)) is not None and ended.seq not in over:
            over.add(entry.seq)
            answers.append(Answer(entry, news.pop(entry.seq, []) + entry.finish(ended.reason), over=True))
    for broken in step.broken:
        if (entry := entries.get(broken.seq)) is not None and broken.seq not in over:
            failed = Failed(broken.code, broken.message, broken.status, broken.param)
            answers.append(Answer(entry, news.pop(entry.seq, []) + entry.fail(failed), over=True))
    return [*(Answer(entries[seq], events) for seq, events in news.items()), *answers]


def of_vectors(report: protocol.Vectors, entries: Mapping[int, Entry]) -> list[Answer]:
    entry = entries.get(report.seq)
    if entry is None:
        return []
    entry.outcome = Finished("stop", Usage(prompt=report.tokens))
    return [Answer(entry, [Embedded(report.vectors, report.dimensions), entry.outcome], over=True)]


def of_scores(report: protocol.Scores, entries: Mapping[int, Entry]) -> list[Answer]:
    entry = entries.get(report.seq)
    if entry is None:
        return []
    entry.outcome = Finished("stop", Usage(prompt=len(entry.prepared.prompt_ids), cached=report.cached))
    return [Answer(entry, [Scored(report.logprobs), entry.outcome], over=True)]
