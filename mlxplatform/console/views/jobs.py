"""Jobs: list with filter and bulk actions, one job with its timeline and live log, and the queues that are held."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils.functional import cached_property
from django.views.decorators.http import require_POST

from mlxplatform.accounts.scopes import OPERATE, READ, WRITE, grants
from mlxplatform.console import waiting
from mlxplatform.console.outcomes import outcome
from mlxplatform.console.page import actor_of, identity_of, page, seen
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.models import Host
from mlxplatform.jobs import acting, kinds
from mlxplatform.jobs.models import Job, JobEvent, QueuePause, Worker
from mlxplatform.jobs.states import STATES, TERMINAL

_PAGE = 50
#: Turning points shown.
_TURNS_SHOWN = 100
#: Related jobs shown on the page of one.
_RELATED = 20
#: Jobs one click may act on: a page of them and some.
_MOST_CHOSEN = 200
#: Events that are turning points of a job's life, as opposed to its log.
_TURNS = ("state", "started", "done", "failed", "cancelled")


class _BoundedPaginator(Paginator):
    """Looks through a hundred pages at most, and once: an exact count of 100,000 rows costs more than the page itself."""

    @cached_property
    def _ids(self) -> list[str]:
        rows: Any = self.object_list
        return list(rows.values_list("pk", flat=True)[: 100 * _PAGE + 1])

    @property
    def count(self) -> int:
        return len(self._ids)

    def page(self, number: Any) -> Any:
        number = self.validate_number(number)
        first = (number - 1) * self.per_page
        found = Job.objects.filter(pk__in=self._ids[first : first + self.per_page])
        return self._get_page(found.order_by("-created_at", "-id"), number, self)  # type: ignore[attr-defined]


@page(READ)
def job_list(request: HttpRequest) -> HttpResponse:
    jobs: QuerySet[Job] = seen(request, Job.objects.order_by("-created_at", "-id"))
    chosen = {name: request.GET.get(name, "") for name in ("state", "kind")}
    if chosen["state"] in STATES:
        jobs = jobs.filter(state=chosen["state"])
    if chosen["kind"]:
        jobs = jobs.filter(kind=chosen["kind"])
    listing = _BoundedPaginator(jobs, _PAGE).get_page(request.GET.get("page"))
    listing.object_list = list(listing.object_list)
    _explain(listing.object_list)
    context = {
        "title": "Jobs",
        "listing": listing,
        "states": STATES,
        "kinds": sorted(kinds.names()),
        "chosen": chosen,
        "query": urlencode({name: value for name, value in chosen.items() if value}),
        **_queues(request),
    }
    return render(request, "console/jobs.html", context)


def _queues(request: HttpRequest) -> dict[str, Any]:
    """The held queues for everybody; those that could be held for whoever may."""
    held = list(QueuePause.objects.order_by("queue"))
    if not grants(tuple(identity_of(request).scopes), OPERATE):
        return {"held": held}
    names = set(Worker.objects.values_list("queue", flat=True)) - {pause.queue for pause in held}
    return {"held": held, "holdable": sorted(names)}


def _explain(jobs: Any) -> None:
    """Tell each job that does not work why, as ``job.why``."""
    rows = list(jobs)
    if not any(job.state not in TERMINAL for job in rows):
        return
    why = waiting.reasons(rows, waiting.leases(Host.objects.values_list("name", flat=True)))
    for job in rows:
        job.why = why.get(job.id, "")


@page(READ)
def job_detail(request: HttpRequest, job_id: str) -> HttpResponse:
    job = seen(request, Job.objects.filter(pk=job_id)).first()
    if job is None:
        raise Http404
    _explain([job])
    context = {
        "title": f"{job.kind} {job.id}",
        "children": seen(request, job.children.order_by("-created_at"))[:_RELATED],
        "dependents": seen(request, job.dependents.order_by("created_at"))[:_RELATED],
        "job": job,
        "ended": job.state in TERMINAL,
        "outcome": outcome(job),
        "life": _life(list(job.events.filter(type__in=_TURNS).order_by("seq")[:_TURNS_SHOWN])),
        "after": job.after.all(),
        "config_text": json.dumps(job.config, indent=2, ensure_ascii=False),
        "result_text": json.dumps(job.result, indent=2, ensure_ascii=False) if job.result else "",
    }
    return render(request, "console/job.html", context)


def _life(events: list[JobEvent]) -> list[dict[str, Any]]:
    """The turning points as a person reads them: what it became, when, for how long, and what was said about it."""
    turns = []
    for event, following in zip(events, [*events[1:], None][: len(events)], strict=True):
        facts = dict(event.payload)
        state = str(facts.pop("state", event.type))
        facts.pop("result", None)  # has a place of its own
        lasted = (following.at - event.at).total_seconds() if following is not None else 0
        said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value not in (None, "", [], {}))
        turns.append({"state": state, "at": event.at, "lasted": _span(lasted) if lasted >= 1 else "", "detail": said[:300]})
    return turns


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes // 60:.0f} h {minutes % 60:.0f} min"


@require_POST
@page(WRITE)
def job_action(request: HttpRequest) -> HttpResponseRedirect:
    """One action on every chosen job; what cannot be done is said for each."""
    action = request.POST.get("action", "")
    if action not in acting.ACTIONS:
        raise Http404
    actor = actor_of(request)
    chosen = request.POST.getlist("job")[:_MOST_CHOSEN]
    mine = {job.id: job for job in seen(request, Job.objects.filter(pk__in=chosen))}
    done = 0
    for job_id in chosen:
        try:
            if job_id not in mine:
                raise Refusal(404, "job_not_found", "job not found")
            acting.act(mine[job_id], action, actor)
        except Refusal as refusal:
            messages.error(request, f"{job_id}: {refusal.message}")
        else:
            done += 1
    if done:
        messages.success(request, f"{action.capitalize()}: {done} of {len(chosen)} jobs.")
    back = request.POST.get("back", "")
    return redirect("console:job", back) if back in mine else redirect("console:jobs")


@require_POST
@page(OPERATE)
def queue_action(request: HttpRequest) -> HttpResponseRedirect:
    """Hold a queue, or let it go on."""
    queue, action = request.POST.get("queue", ""), request.POST.get("action", "")
    try:
        if action == "hold":
            acting.hold(queue, actor_of(request))
            messages.success(request, f"Queue {queue} is held: what runs goes on, nothing new begins.")
        elif action == "go-on":
            acting.let_go_on(queue, actor_of(request))
            messages.success(request, f"Queue {queue} goes on.")
        else:
            raise Http404
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect("console:home" if request.POST.get("back") == "home" else "console:jobs")
