"""The playground's history: a person's stored completions, grouped into conversations.

The page stores every answer with the conversation's number, its title and the person in its metadata; the newest answer
of a number holds the whole conversation. A project shares what it stores: the person's name keeps colleagues' lists
apart, it is no secret from them.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse

from mlxplatform.accounts.scopes import INFERENCE
from mlxplatform.console.page import page, project_of
from mlxplatform.inference import history, request_log
from mlxplatform.inference.models import StoredAnswer

#: Newest answers looked through, and conversations shown.
_LOOKED, _SHOWN = 1000, 50


def _answers(request: HttpRequest) -> list[tuple[StoredAnswer, dict[str, Any]]]:
    """This person's stored answers that belong to conversations, newest first, with their metadata."""
    rows = StoredAnswer.objects.filter(
        project=project_of(request), kind=StoredAnswer.Kind.CHAT, status=StoredAnswer.Status.COMPLETED
    )
    newest = rows.order_by("-created_at", "-id").defer("events", "items", "answer", "request")[:_LOOKED]
    marked = ((row, history.loads(row.metadata)) for row in newest)
    me = request.user.get_username()
    return [(row, facts) for row, facts in marked if facts.get("conversation") and facts.get("person") == me]


@page(INFERENCE)
def conversation_list(request: HttpRequest) -> HttpResponse:
    seen: dict[str, dict[str, Any]] = {}
    for row, facts in _answers(request):
        entry = {"id": facts["conversation"], "title": facts.get("title") or "Conversation", "at": row.created_at.isoformat()}
        seen.setdefault(facts["conversation"], entry)
    return JsonResponse({"conversations": list(seen.values())[:_SHOWN], "kept": bool(settings.ENV.store)})


@page(INFERENCE)
def conversation(request: HttpRequest, conversation_id: str) -> HttpResponse:
    """GET: its turns. POST: forget every answer of it."""
    found = [(row, facts) for row, facts in _answers(request) if facts["conversation"] == conversation_id]
    if not found:
        raise Http404
    if request.method == "POST":
        ids = [row.pk for row, _ in found]
        for answer_id in ids:
            request_log.forget(project_of(request), request_id=answer_id)
        gone = StoredAnswer.objects.filter(pk__in=ids).delete()[0]
        return JsonResponse({"forgotten": gone})
    row, facts = found[0]
    turns, system = [], ""
    answer = history.loads(row.answer)
    for message in [*history.loads(row.items), answer["choices"][0]["message"]]:
        if message.get("role") in {"system", "developer"}:
            system = _text(message)
        else:
            turns.append(_turn(message, row.model))
    return JsonResponse({"id": conversation_id, "title": facts.get("title", ""), "system": system, "turns": turns})


def _turn(message: dict[str, Any], model: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.get("role", "user"), "content": _text(message)}
    if turn["role"] == "assistant":
        turn.update(model=model, calls=message.get("tool_calls") or [], reasoning=message.get("reasoning") or "")
    if turn["role"] == "tool":
        turn["call"] = message.get("tool_call_id", "")
    parts = message.get("content")
    if isinstance(parts, list):
        turn["images"] = [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]
    return turn


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
