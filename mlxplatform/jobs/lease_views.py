"""``/api/lease``: who uses each host's GPU, who waits and why, and what happened lately."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest

from mlxplatform.broker import lease
from mlxplatform.broker.connections import sync_client
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.models import Host


def show_lease(request: HttpRequest) -> dict[str, Any]:
    hosts = sorted({settings.ENV.host_id, *Host.objects.values_list("name", flat=True)})
    wanted = request.GET.get("host", "")
    if wanted and wanted not in hosts:
        raise Refusal(404, "host_not_found", "host not found", param="host")
    shown = [wanted] if wanted else hosts
    return {"ok": True, "leases": [{"host": host, **lease.look(sync_client(), host)} for host in shown]}


lease_detail = endpoint(GET=show_lease)
