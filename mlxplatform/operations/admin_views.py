"""The admin's upkeep page: who holds each GPU, what database, broker and disk disagree about, and its repair."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from mlxplatform.accounts import audit
from mlxplatform.broker import lease
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.inference.models import Host
from mlxplatform.operations.doctor import examine


def upkeep(request: HttpRequest) -> HttpResponse:
    if not request.user.is_superuser:
        raise PermissionDenied
    findings = examine()
    if request.method == "POST":
        repaired = [finding for finding in findings if finding.repair is not None]
        for finding in repaired:
            if finding.repair is not None:
                finding.repair()
        what = {"repaired": [f"{finding.subject}: {finding.what}" for finding in repaired]}
        audit.record(f"user:{request.user.get_username()}", "platform.repair", "platform", after=what)
        messages.success(request, f"Repaired: {len(repaired)}")
        return HttpResponseRedirect(request.path)
    leases, reachable = _leases()
    context = {
        **admin.site.each_context(request),
        "title": "Upkeep",
        "leases": leases,
        "reachable": reachable,
        "findings": findings,
        "repairable": any(finding.repair for finding in findings),
    }
    return render(request, "operations/upkeep.html", context)


def _leases() -> tuple[list[dict[str, Any]], bool]:
    shown: list[dict[str, Any]] = []
    for host in sorted({settings.ENV.host_id, *Host.objects.values_list("name", flat=True)}):
        try:
            seen = {"host": host, **lease.look(sync_client(), host)}
        except BROKER_ERRORS:
            return shown, False
        for one in seen["history"]:
            one["when"] = dt.datetime.fromtimestamp(one["at"] / 1000, dt.UTC)
        shown.append(seen)
    return shown, True
