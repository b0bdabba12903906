"""Jobs: list with filter and bulk actions, and one job with its timeline and live log."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts import audit
from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.console.page import page
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import kinds, service
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import STATES, TERMINAL

_PAGE = 50
_ACTIONS = {"cancel": service.cancel, "retry": service.retry, "pause": service.pause, "resume": service.resume}
#: Events that are turning points of a job's life, as opposed to its log.
_TURNS = ("state", "started", "done", "failed", "cancelled")


class _CountlessPaginator(Paginator):
    """Counts at most a hundred pages: an exact count of 100,000 rows costs more than the page itself."""

    @property
    def count(self) -> int:
        rows: Any = self.object_list
        return len(rows.values_list("pk")[: 100 * _PAGE + 1])


@page(READ)
def job_list(request: HttpRequest) -> HttpResponse:
    jobs: QuerySet[Job] = Job.objects.order_by("-created_at", "-id")
    chosen = {name: request.GET.get(name, "") for name in ("state", "kind")}
    if chosen["state"] in STATES:
        jobs = jobs.filter(state=chosen["state"])
    if chosen["kind"]:
        jobs = jobs.filter(kind=chosen["kind"])
    listing = _CountlessPaginator(jobs, _PAGE).get_page(request.GET.get("page"))
    context = {
        "title": "Jobs",
        "listing": listing,
        "states": STATES,
        "kinds": sorted(kinds.names()),
        "chosen": chosen,
        "query": urlencode({name: value for name, value in chosen.items() if value}),
    }
    return render(request, "console/jobs.html", context)


@page(READ)
def job_detail(request: HttpRequest, job_id: str) -> HttpResponse:
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise Http404
    context = {
        "title": f"{job.kind} {job.id}",
        "job": job,
        "ended": job.state in TERMINAL,
        "turns": job.events.filter(type__in=_TURNS).order_by("seq")[:100],
        "after": job.after.all(),
        "config_text": json.dumps(job.config, indent=2, ensure_ascii=False),
        "result_text": json.dumps(job.result, indent=2, ensure_ascii=False) if job.result else "",
    }
    return render(request, "console/job.html", context)


@require_POST
@page(WRITE)
def job_action(request: HttpRequest) -> HttpResponseRedirect:
    """One action on every chosen job; what cannot be done is said for each."""
    action = _ACTIONS.get(request.POST.get("action", ""))
    if action is None:
        raise Http404
    actor = f"user:{request.user.get_username()}"
    done = 0
    for job_id in request.POST.getlist("job"):
        try:
            action(job_id, by=actor)
        except Refusal as refusal:
            messages.error(request, f"{job_id}: {refusal.message}")
        else:
            audit.record(actor, f"job.{request.POST['action']}", job_id)
            done += 1
    if done:
        messages.success(request, f"{request.POST['action'].capitalize()}: {done} of {len(request.POST.getlist('job'))} jobs.")
    back = request.POST.get("back", "")
    return redirect("console:job", back) if back else redirect("console:jobs")
