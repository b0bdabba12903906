"""Finding jobs: the filter that lists, bulk actions and exports share, and pages with honest cursors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Q, QuerySet
from django.http import HttpRequest

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import STATES

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000


def visible(request: HttpRequest) -> QuerySet[Job]:
    """The jobs the caller may see: an admin all of them, others those of their project."""
    identity = getattr(request, "identity", None)
    if identity is not None and not identity.is_admin:
        return Job.objects.filter(project=request.project)  # type: ignore[attr-defined]
    return Job.objects.all()


@dataclass(frozen=True)
class Page:
    jobs: list[Job]
    has_more: bool


def filtered(jobs: QuerySet[Job], params: Mapping[str, str]) -> QuerySet[Job]:
    """Apply ``kind``, ``state`` (or ``status``; several separated by commas) and ``parent``.

    Raises:
        Refusal: an unknown state.
    """
    kind = params.get("kind", "")
    if kind:
        jobs = jobs.filter(kind__in=[name.strip() for name in kind.split(",")])
    states = [part.strip() for part in (params.get("state") or params.get("status") or "").split(",") if part.strip()]
    for state in states:
        if state not in STATES:
            raise Refusal(400, "invalid_value", f"state must be one of {', '.join(STATES)}", param="state")
    if len(states) == 1:
        jobs = jobs.filter(state=states[0])
    elif states:
        jobs = jobs.filter(state__in=states)
    if params.get("parent"):
        jobs = jobs.filter(parent_id=params["parent"])
    return jobs


def page(jobs: QuerySet[Job], params: Mapping[str, str]) -> Page:
    """One page of the list, newest first, beginning after the job named by ``after``.

    Raises:
        Refusal: a limit outside 1 to 1000, or an unknown cursor.
    """
    limit = limit_of(params)
    found = filtered(jobs, params)
    after = params.get("after", "")
    if after:
        mark = jobs.filter(pk=after).values_list("created_at", "id").first()
        if mark is None:
            raise Refusal(400, "invalid_value", "after must be the id of a job in this list", param="after")
        # created_at <= … lets the index find the place; the rest settles jobs of one instant.
        found = found.filter(created_at__lte=mark[0]).filter(Q(created_at__lt=mark[0]) | Q(id__lt=mark[1]))
    rows = list(found.order_by("-created_at", "-id")[: limit + 1])
    return Page(rows[:limit], len(rows) > limit)


def limit_of(params: Mapping[str, str]) -> int:
    raw = params.get("limit", "")
    if not raw:
        return DEFAULT_LIMIT
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 6 and 1 <= int(raw) <= MAX_LIMIT):
        raise Refusal(400, "invalid_value", f"limit must be a whole number from 1 to {MAX_LIMIT}", param="limit")
    return int(raw)
