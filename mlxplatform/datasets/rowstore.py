"""Made rows in SQL: saved source by source, settled round by round, read in order. Every function is synchronous."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import Count

from mlxplatform.datasets.models import DatasetRow
from mlxplatform.jobs.plain import plain, text

#: Room for the rows of one source and the sources of one round within an ordinal.
ROWS_PER_SOURCE = 10_000
SOURCES_PER_ROUND = 100_000_000
#: Longest reason a row can have; a failed call's holds whatever code the engine gave.
REASON_CHARS = 40


@dataclass(frozen=True)
class Made:
    """One row of a source with the verdict of the row-level filters."""

    content: dict[str, Any] | None
    reason: str = ""
    detail: str = ""
    chars: int = 0
    verdicts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceDone:
    """Everything one source gave: at least one row or one reason."""

    source: str
    round: int
    index: int
    made: Sequence[Made]


def ordinal(round_: int, index: int, number: int) -> int:
    return (round_ * SOURCES_PER_ROUND + index) * ROWS_PER_SOURCE + number


def done_sources(version: int) -> set[str]:
    return set(DatasetRow.objects.filter(version=version).values_list("source", flat=True).distinct())


def save(version: int, batch: Iterable[SourceDone]) -> None:
    """All rows of each source or none of it. A source saved before (by another attempt) stays as it is."""
    rows = [
        DatasetRow(
            version_id=version,
            ordinal=ordinal(done.round, done.index, number),
            source=done.source,
            state=DatasetRow.State.DROPPED if made.reason else DatasetRow.State.ACCEPTED,
            reason=made.reason[:REASON_CHARS],
            detail=text(made.detail[:1000]),
            content=plain(made.content),
            chars=made.chars,
            verdicts=plain(made.verdicts),
        )
        for done in batch
        for number, made in enumerate(done.made[:ROWS_PER_SOURCE])
    ]
    with transaction.atomic():
        DatasetRow.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)


def counts(version: int) -> tuple[int, Counter[str]]:
    """Accepted rows, and dropped ones by reason."""
    accepted = 0
    dropped: Counter[str] = Counter()
    verdicts = DatasetRow.objects.filter(version=version).values_list("state", "reason").annotate(n=Count("id")).order_by()
    for state, reason, number in verdicts:
        if state == DatasetRow.State.ACCEPTED:
            accepted += number
        else:
            dropped[reason] += number
    return accepted, dropped


def accepted_rows(version: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(id, content) in order, without holding them all."""
    rows = DatasetRow.objects.filter(version=version, state=DatasetRow.State.ACCEPTED).order_by("ordinal")
    for row_id, content in rows.values_list("id", "content").iterator(chunk_size=500):
        yield row_id, content or {}


def drop_later(verdicts: dict[int, tuple[str, str]]) -> None:
    """Turn accepted rows into dropped ones: id → (reason, detail)."""
    by_reason: dict[str, list[int]] = {}
    with transaction.atomic():
        for row_id, (reason, detail) in verdicts.items():
            if detail:
                DatasetRow.objects.filter(id=row_id).update(state=DatasetRow.State.DROPPED, reason=reason, detail=detail[:1000])
            else:
                by_reason.setdefault(reason, []).append(row_id)
        for reason, ids in by_reason.items():
            for start in range(0, len(ids), 500):
                DatasetRow.objects.filter(id__in=ids[start : start + 500]).update(state=DatasetRow.State.DROPPED, reason=reason)


def mark_split(version: int, train_ids: Sequence[int], valid_ids: Sequence[int]) -> None:
    with transaction.atomic():
        for split, ids in (("train", train_ids), ("valid", valid_ids)):
            for start in range(0, len(ids), 500):
                DatasetRow.objects.filter(id__in=ids[start : start + 500], version=version).update(split=split)


def reasons_sentence(dropped: Counter[str], samples: Sequence[tuple[str, str]]) -> str:
    """ "12 × not_json, 1 × missing_key (line 3: …)" for messages of jobs."""
    if not dropped:
        return "there was no input"
    first = dict(reversed(list(samples)))
    examples = {reason: f" ({first[reason]})" if reason in first else "" for reason in dropped}
    return ", ".join(f"{number} × {reason}{examples[reason]}" for reason, number in dropped.most_common(8))


def samples(version: int, limit: int = 20) -> list[tuple[str, str]]:
    return list(
        DatasetRow.objects.filter(version=version, state=DatasetRow.State.DROPPED)
        .exclude(detail="")
        .order_by("ordinal")
        .values_list("reason", "detail")[:limit]
    )
