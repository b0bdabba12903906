"""How long logs are kept: an ended job keeps its row and its last event, the events before go after some months."""

from __future__ import annotations

import datetime as dt

from django.db.models import F
from django.utils import timezone

from mlxplatform.jobs.models import JobEvent
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.retention import policy

#: Events removed in one transaction, and in one sweep: writers must never wait long.
SLICE, MOST = 2_000, 50_000


def sweep() -> int:
    """Remove old events; returns how many. A stream of such a job answers with a reset and what is left."""
    edge = timezone.now() - dt.timedelta(days=policy.current().job_log_days)
    old = JobEvent.objects.filter(job__state__in=TERMINAL, job__ended_at__lt=edge, seq__lt=F("job__last_seq"))
    removed = 0
    while removed < MOST and (ids := list(old.order_by("job_id").values_list("id", flat=True)[:SLICE])):
        removed += JobEvent.objects.filter(id__in=ids).delete()[0]
    return removed
