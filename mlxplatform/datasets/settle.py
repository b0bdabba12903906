"""The set-level verdicts of a round: duplicates, likeness to the pool, and more rows than asked for.

Goes through accepted rows in order and turns repeats into drops. Doing it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlxplatform.datasets import rowstore
from mlxplatform.datasets.filters import distinct
from mlxplatform.datasets.filters.near import near_duplicates
from mlxplatform.datasets.options import Options
from mlxplatform.datasets.templates.base import Inputs, Template


def settle(version: int, template: Template, inputs: Inputs, options: Options) -> int:
    """Apply the run's set filters; returns how many rows are accepted now."""
    filters = options.filters
    if filters.distinct if filters.distinct is not None else template.needs_llm:
        _apply(distinct.exact(rowstore.accepted_rows(version)))
    limit = filters.pool_limit if filters.pool_limit is not None else template.pool_limit
    if limit and limit < 1 and (template.pool_limit is not None or filters.pool_limit is not None):
        seeds = template.pool(inputs) if template.pool else ()
        _apply(distinct.Pool(limit, seeds).verdicts(rowstore.accepted_rows(version)))
    if filters.near_duplicates is not None:
        _apply(near_duplicates(rowstore.accepted_rows(version), filters.near_duplicates))
    accepted, _ = rowstore.counts(version)
    if options.rows is not None and accepted > options.rows:
        ids = [row_id for row_id, _ in rowstore.accepted_rows(version)]
        rowstore.drop_later(dict.fromkeys(ids[options.rows :], ("over_target", "")))
        accepted = options.rows
    return accepted


def _apply(verdicts: Iterable[distinct.Verdict]) -> None:
    rowstore.drop_later({row_id: (reason, detail) for row_id, reason, detail in verdicts})
