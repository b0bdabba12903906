"""Files and batches: what was uploaded, what was produced, how far each batch is and what it cost."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts import audit
from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.batches import service as batches
from mlxplatform.batches.models import ENDED, Batch
from mlxplatform.console.page import actor_of, page, seen, sight_of
from mlxplatform.files import service as files
from mlxplatform.inference.contract import Refusal

_PAGE = 50


@page(READ)
def file_list(request: HttpRequest) -> HttpResponse:
    listing = Paginator(files.visible(sight_of(request)).order_by("-created_at", "-id"), _PAGE).get_page(request.GET.get("page"))
    return render(request, "console/files.html", {"title": "Files", "listing": listing, "query": ""})


@require_POST
@page(WRITE)
def file_delete(request: HttpRequest) -> HttpResponseRedirect:
    actor = actor_of(request)
    try:
        file = files.find(request.POST.get("file", ""), sight_of(request))
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("console:files")
    files.delete(file)
    audit.record(actor, "file.delete", file.id, project=file.project, before={"filename": file.filename})
    messages.success(request, f"{file.filename} is deleted.")
    return redirect("console:files")


@page(READ)
def batch_list(request: HttpRequest) -> HttpResponse:
    rows = (
        seen(request, Batch.objects.filter(deleted_at=None))
        .select_related("output_file", "error_file", "job")
        .order_by("-created_at", "-id")
    )
    listing = Paginator(rows, _PAGE).get_page(request.GET.get("page"))
    return render(request, "console/batches.html", {"title": "Batches", "listing": listing, "ended": ENDED, "query": ""})


@require_POST
@page(WRITE)
def batch_cancel(request: HttpRequest) -> HttpResponseRedirect:
    batch = seen(request, Batch.objects.filter(pk=request.POST.get("batch", ""), deleted_at=None)).first()
    if batch is None:
        raise Http404
    try:
        batches.cancel(batch, actor_of(request))
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, f"{batch.id} stops; what is finished is kept.")
    return redirect("console:batches")
