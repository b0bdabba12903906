"""Writing: vaults, imports, runs, the review queue, forgetting, evaluation questions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponseBase

from mlxplatform.accounts import audit
from mlxplatform.files import service as files
from mlxplatform.files.names import base_name
from mlxplatform.files.views import storage_quota
from mlxplatform.http import sse
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service as jobs
from mlxplatform.jobs.feed import feed
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.jobs.wire import job_json
from mlxplatform.memory import changes, forget, orders, vault_settings
from mlxplatform.memory.git import GitFailed
from mlxplatform.memory.models import Change, Conversation, Question, Run, Vault
from mlxplatform.memory.orders import invalid, only
from mlxplatform.memory.sources.registry import READERS
from mlxplatform.memory.vault import Wiki
from mlxplatform.memory.views.asking import actor_of, identity_of, number, project_of, vault_of
from mlxplatform.memory.wire import change_card, change_json, run_json, vault_json

#: Longest page a reviewer may send, characters.
PAGE_LIMIT = 1_000_000


def takes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A view that gets the request's JSON body (none is an empty one) and runs in a thread."""

    async def view(request: HttpRequest, **kwargs: Any) -> Any:
        sent = request.headers.get("Content-Length", "") not in ("", "0") or "Transfer-Encoding" in request.headers
        body = await read_json(request) if sent else {}
        return await sync_to_async(function)(request, body=body, **kwargs)

    return view


@takes
def init(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    """Make a vault, or finish one; what exists is never overwritten."""
    name = vault_settings.check(body)
    project, by = project_of(request), actor_of(request)
    own = Vault.objects.filter(project=project, name__iexact=name)
    vault = own.first()
    if vault is None:
        if "history_keys" in body:
            body["history_keys"] = vault_settings.keys_to_read(identity_of(request), project, body["history_keys"], ())
        try:
            with transaction.atomic():
                vault = Vault.objects.create(**{**body, "name": name, "project": project})
                audit.record(by, "memory.init", name, project=project)
        except IntegrityError:
            vault = own.get()
    try:
        done = Wiki.of(vault).set_up()
    except GitFailed as error:
        raise Refusal(503, error.code, error.message) from None
    told = {"created": list(done.created), "git_initialized": done.git_initialized, "already_set_up": done.already_set_up}
    return {"ok": True, "vault": vault_json(vault), **told}


@takes
def change_vault(request: HttpRequest, name: str, body: dict[str, Any]) -> dict[str, Any]:
    vault = vault_of(request, name)
    vault_settings.change(vault, body, identity_of(request), actor_of(request))
    return {"ok": True, "vault": vault_json(vault)}


@takes
def import_conversations(request: HttpRequest, body: dict[str, Any]) -> HttpResponseBase:
    """Read an export: an uploaded file (``file_id``), or a small one in the body (``content``)."""
    only(
        body,
        {"vault": str, "format": str, "file_id": str, "content": str, "name": str, "source": str, "complete": bool},
        ("format",),
    )
    if body["format"] not in READERS:
        raise invalid("format", f"format must be one of {', '.join(READERS)}")
    if ("file_id" in body) == ("content" in body):
        raise invalid("file_id", "give either file_id, the id of an uploaded file, or content")
    source = body.get("source", body["format"])
    if not (1 <= len(source) <= 40 and source.isprintable() and ":" not in source) or source == "history":
        raise invalid("source", "source must be a name of 1 to 40 characters")
    vault, by = vault_of(request, body.get("vault")), actor_of(request)
    if "file_id" in body:
        file = files.find(body["file_id"], vault.project)
    else:
        raw = body["content"].encode()
        name = base_name(body.get("name") or f"import.{body['format']}")
        files.check_quota(vault.project, len(raw), storage_quota(request))
        file = files.store([raw], name, "user_data", project=vault.project, created_by=by)
    complete, ours = body.get("complete", False), "content" in body
    job = orders.read_export(vault, body["format"], source, file, by, complete=complete, delete_file=ours)
    return json_response({"ok": True, "job": job_json(job)}, 202)


# Runs.


@takes
def synthesize(request: HttpRequest, body: dict[str, Any]) -> HttpResponseBase:
    """Start a run; with ``stream`` the answer follows it, and leaving cancels it."""
    stream = body.pop("stream", False)
    if not isinstance(stream, bool):
        raise invalid("stream", "stream must be true or false")
    if body.get("dry"):
        return json_response({"ok": True, **_dry(vault_of(request, body.get("vault")))})
    key = request.headers.get("Idempotency-Key")
    job = orders.synthesize(body, project_of(request), actor_of(request), key[:255] if key else None)
    if stream:
        return sse.EventStreamResponse(_frames(job.id))
    return json_response({"ok": True, "job": job_json(job)}, 202)


def preview_synthesis(request: HttpRequest) -> HttpResponseBase:
    """What a run would have to do, as frames; a GET starts nothing."""
    plan = _dry(vault_of(request))

    async def frames() -> AsyncGenerator[bytes, None]:
        for stage in plan["stages"]:
            yield sse.data_frame({"type": "stage", "stage": stage["stage"], "message": stage["message"]})
        yield sse.data_frame({"type": "summary", "implemented": True, "stages": plan["stages"], "note": plan["note"]})
        yield sse.DONE

    return sse.EventStreamResponse(frames())


def _dry(vault: Vault) -> dict[str, Any]:
    from mlxplatform.memory.pending import pending

    return {"vault": vault.name, "stages": pending(vault), "note": "dry run: no model was asked and nothing was written"}


async def _frames(job_id: str) -> AsyncGenerator[bytes, None]:
    """A run's events in the frames of the older system. The run is cancelled when the reader leaves."""
    try:
        async for frame in sse.with_heartbeats(_follow(job_id)):
            yield frame
    finally:
        await sync_to_async(_cancel_if_open)(job_id)


async def _follow(job_id: str) -> AsyncGenerator[bytes, None]:
    async for page in feed().follow(job_id, 0):
        for event in page:
            if event["type"] == "stage":
                yield sse.data_frame({"type": "stage", "stage": event.get("stage"), "message": event.get("message", "")})
            elif event["type"] == "log":
                yield sse.data_frame({"type": "log", "message": event.get("line", "")})
    job = await Job.objects.aget(pk=job_id)
    if job.state == "done":
        result = job.result or {}
        note = result.get("nothing_because") or f"{result.get('proposed', 0)} changes proposed"
        yield sse.data_frame(
            {"type": "summary", "implemented": True, "stages": result.get("stages", []), "note": note, "job": job_id}
        )
        yield sse.DONE
    else:
        yield sse.data_frame({"type": "error", "message": job.error or f"the run was {job.state}", "job": job_id})


def _cancel_if_open(job_id: str) -> None:
    job = Job.objects.filter(pk=job_id).first()
    if job is not None and job.state not in TERMINAL:
        jobs.cancel(job_id, "client left")


def run_list(request: HttpRequest) -> dict[str, Any]:
    runs = Run.objects.filter(vault=vault_of(request)).select_related("vault")
    return {"ok": True, "runs": [run_json(run) for run in runs[: number(request, "limit", 20, 200)]]}


def _run(request: HttpRequest, run_id: str) -> Run:
    run = Run.objects.filter(pk=run_id, vault__project=project_of(request)).select_related("vault").first()
    if run is None:
        raise Refusal(404, "run_not_found", "run not found")
    return run


def run_detail(request: HttpRequest, run_id: str) -> dict[str, Any]:
    run = _run(request, run_id)
    return {"ok": True, "run": run_json(run), "changes": [change_json(change) for change in run.changes.select_related("vault")]}


@takes
def run_revert(request: HttpRequest, run_id: str, body: dict[str, Any]) -> dict[str, Any]:
    only(body, {})
    run, by = _run(request, run_id), actor_of(request)
    reverted, refused = changes.revert_run(run, by)
    audit.record(by, "memory.revert_run", run.id, project=run.vault.project, after={"reverted": reverted})
    return {"ok": True, "reverted": reverted, "refused": refused}


# The review queue.


def change_list(request: HttpRequest) -> dict[str, Any]:
    found = Change.objects.filter(vault=vault_of(request)).select_related("vault")
    state = request.GET.get("state", "proposed")
    if state not in (*Change.STATES, "all"):
        raise invalid("state", f"state must be one of {', '.join(Change.STATES)}, all")
    if state != "all":
        found = found.filter(state=state)
    if request.GET.get("page"):
        found = found.filter(stem=request.GET["page"].replace(" ", "_"))
    limit = number(request, "limit", 100, 1000)
    rows = list(found[: limit + 1])
    return {"ok": True, "changes": [change_json(change) for change in rows[:limit]], "has_more": len(rows) > limit}


def _change(request: HttpRequest, change_id: str) -> Change:
    change = Change.objects.filter(pk=change_id, vault__project=project_of(request)).select_related("vault", "run").first()
    if change is None:
        raise Refusal(404, "change_not_found", "change not found")
    return change


def change_detail(request: HttpRequest, change_id: str) -> dict[str, Any]:
    return {"ok": True, "change": change_card(_change(request, change_id))}


@takes
def change_act(request: HttpRequest, change_id: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
    change, by = _change(request, change_id), actor_of(request)
    if action == "accept":
        only(body, {"text": str, "base": str})
        text = body.get("text")
        if text is not None and (not text.strip() or len(text) > PAGE_LIMIT or "\x00" in text):
            raise invalid("text", f"text must have 1 to {PAGE_LIMIT} characters; reject the change to leave the page as it is")
        change = changes.accept(change, by, text, body.get("base"))
    else:
        only(body, {})
        change = changes.reject(change, by) if action == "reject" else changes.revert(change, by)
    audit.record(
        by, f"memory.{action}", change.id, project=change.vault.project, after={"page": change.stem, "state": change.state}
    )
    return {"ok": True, "change": change_json(change)}


@takes
def forget_this(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    """Forget a conversation (its hash, or source and id), a statement, or a page."""
    only(body, {"vault": str, "conversation": str, "source": str, "id": str, "statement": str, "page": str})
    vault, by = vault_of(request, body.get("vault")), actor_of(request)
    asked = [name for name in ("conversation", "id", "statement", "page") if body.get(name)]
    if len(asked) != 1:
        raise invalid("conversation", "name one thing to forget: conversation, source with id, statement, or page")
    if asked[0] in ("conversation", "id"):
        found = Conversation.objects.filter(vault=vault)
        found = (
            found.filter(hash=body["conversation"].removeprefix("conv:"))
            if asked[0] == "conversation"
            else found.filter(external_id=body["id"])
        )
        if body.get("source"):
            found = found.filter(source=body["source"])
        target = found.first()
        if target is None:
            raise Refusal(404, "conversation_not_found", "there is no such conversation", param=asked[0])
        done = forget.conversation(vault, target, by)
    elif asked[0] == "statement":
        if len(body["statement"].split()) < 2:
            raise invalid("statement", "give the whole statement, at least two words")
        done = forget.fact(vault, body["statement"], by)
    else:
        done = forget.page(vault, body["page"].strip().replace(" ", "_"), by)
    audit.record(by, "memory.forget", asked[0], project=vault.project, after={"pages": done.pages})
    return {"ok": True, **done.as_json()}


# Evaluation questions.


def _question_json(question: Question) -> dict[str, Any]:
    return {"id": question.pk, "question": question.text, "expected": question.expected, "negative": question.negative}


def question_list(request: HttpRequest) -> dict[str, Any]:
    return {"ok": True, "questions": [_question_json(question) for question in vault_of(request).questions.order_by("pk")]}


@takes
def question_make(request: HttpRequest, body: dict[str, Any]) -> HttpResponseBase:
    only(body, {"vault": str, "question": str, "expected": list, "negative": bool}, ("question", "expected"))
    if not all(isinstance(text, str) and text.strip() for text in body["expected"]):
        raise invalid("expected", "expected must be a list of texts")
    if len(body["question"]) > 300:
        raise invalid("question", "question must have at most 300 characters")
    vault = vault_of(request, body.get("vault"))
    made, _ = Question.objects.update_or_create(
        vault=vault, text=body["question"], defaults={"expected": body["expected"], "negative": body.get("negative", False)}
    )
    return json_response({"ok": True, "question": _question_json(made)}, 201)


def question_remove(request: HttpRequest, question_id: int) -> dict[str, Any]:
    gone, _ = Question.objects.filter(pk=question_id, vault__project=project_of(request)).delete()
    if not gone:
        raise Refusal(404, "question_not_found", "question not found")
    return {"ok": True, "deleted": True}
