"""The permission matrix: every route and method against every scope, and against another project's things.

Generated from the URL table: a new route fails until ``permissions.txt`` says whose its things are and which scope it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import URLPattern, get_resolver
from django.utils import timezone

from mlxplatform.accounts import identity, keys
from mlxplatform.accounts.middleware import _is_guarded
from mlxplatform.accounts.scopes import ADMIN, ROLES, SCOPES
from mlxplatform.files import service as files
from mlxplatform.files.models import Upload
from mlxplatform.inference.models import FinishedRequest, StoredAnswer
from mlxplatform.memory.models import Question
from mlxplatform.training.models import TrainingRun
from mlxplatform.training.openai.render import public_id
from mlxplatform.webhooks.models import Webhook
from tests.api.test_ownership import BLUE, RED, Belongings, signed_in

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@dataclass(frozen=True)
class Rule:
    """One line of permissions.txt."""

    route: str
    whose: str
    scopes: dict[str, str]


def rules() -> dict[str, Rule]:
    found = {}
    for line in (Path(__file__).parent / "permissions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            route, whose, *methods = line.split()
            found[route] = Rule(route, whose, dict(part.split("=") for part in methods))
    return found


RULES = rules()


def routes(resolver: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for pattern in resolver.url_patterns:
        here = before + str(pattern.pattern)
        if not isinstance(pattern, URLPattern):
            yield from routes(pattern, here)
            continue
        here = re.sub(r"\(\?P<action>(\w+)[^)]*\)", r"\1", here.strip("^$"))
        here = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", here)
        yield re.sub(r"<\w+:(\w+)>", r"{\1}", here), pattern.callback


def methods_of(view: Any) -> set[str]:
    if hasattr(view, "methods"):
        return set(view.methods)
    return {name.upper() for name in view.view_class.http_method_names if hasattr(view.view_class, name)} - {"OPTIONS"}


def holder(project: str, *scopes: str) -> Client:
    _, secret = keys.create("test", project=project, scopes=scopes)
    identity.forget()
    return Client(headers={"host": "localhost", "authorization": f"Bearer {secret}"}, raise_request_exception=False)


def ask(client: Client, method: str, path: str) -> Any:
    return client.generic(method, path, "{}" if method not in {"GET", "DELETE"} else "", content_type="application/json")


def text(answer: Any) -> str:
    """The body without the request's own number."""
    content = answer.getvalue() if not answer.streaming or not answer.is_async else async_to_sync(_gathered)(answer)
    return re.sub(r"req_\w+", "req", content.decode())


async def _gathered(answer: Any) -> bytes:
    return b"".join([part async for part in answer])


def test_every_route_has_its_rule() -> None:
    guarded = {route: view for route, view in routes(get_resolver()) if _is_guarded(f"/{route}")}
    assert set(guarded) == set(RULES)
    assert {route: methods_of(view) for route, view in guarded.items()} == {
        route: set(rule.scopes) for route, rule in RULES.items()
    }


def test_a_key_without_the_scope_is_stopped_at_the_door_and_one_without_any_before_it() -> None:
    clients = {scope: holder(BLUE, scope) for scope in SCOPES}
    nobody = Client(headers={"host": "localhost", "authorization": "Bearer wrong"})
    for rule in RULES.values():
        path = "/" + re.sub(r"{\w+}", "x", rule.route)
        for method, scope in rule.scopes.items():
            assert ask(nobody, method, path).status_code == 401, (method, path)
            for held, client in clients.items():
                if held not in {*scope.split("|"), ADMIN}:
                    assert ask(client, method, path).status_code == 403, (held, method, path)


class Everything(Belongings):
    """Also what only programs make, as the values of the routes' parameters."""

    def __init__(self, project: str) -> None:
        super().__init__(project)
        now = timezone.now()
        stored = {"project": project, "created_at": now, "used_at": now, "expires_at": now + timezone.timedelta(days=1)}
        for kind, name in (("response", "resp_red"), ("chat.completion", "chatcmpl-red"), ("conversation", "conv_red")):
            StoredAnswer.objects.create(id=name, kind=kind, **stored)
        FinishedRequest.objects.create(
            id=f"req-{project}", path="/v1/x", project=project, model="tiny", outcome="completed", ended_at=now
        )
        upload = Upload.objects.create(filename="a", purpose="batch", bytes=2, project=project, expires_at=stored["expires_at"])
        hook = Webhook.objects.create(url="https://example.com/", project=project)
        question = Question.objects.create(vault=self.vault, text="?")
        TrainingRun.objects.create(job=self.job.id, project=project, surface={"model": "tiny"})
        self.spare = files.store([b"x"], "spare.jsonl", "batch", project=project, created_by="test")
        self.values = {
            "request_id": f"req-{project}",
            "completion_id": "chatcmpl-red",
            "response_id": "resp_red",
            "conversation_id": "conv_red",
            "item_id": "msg_1",
            "job_id": self.job.id,
            "file_id": self.file.id,
            "upload_id": upload.id,
            "batch_id": self.batch.pk,
            "webhook_id": hook.id,
            "dataset_id": self.dataset.id,
            "ordinal": "0",
            "name": self.vault.name,
            "adapter_id": self.adapter.id,
            "run_id": self.run.pk,
            "change_id": self.change.pk,
            "question_id": str(question.pk),
            "schedule_id": self.schedule.pk,
        }

    def values_for(self, rule: Rule) -> dict[str, str]:
        """OpenAI's fine-tuning API names jobs its own way."""
        if "fine_tuning" not in rule.route:
            return self.values
        return {**self.values, "job_id": public_id(self.job.id)}


#: What no project's thing is called; numbers where the route wants them.
NOBODYS = {"ordinal": "0", "question_id": "987654321"}


def test_another_projects_thing_is_as_unknown_as_none() -> None:
    red = Everything(RED)
    blue = holder(BLUE, "inference", "read", "write")
    tried = 0
    for rule in RULES.values():
        if rule.whose != "own":
            continue
        names = re.findall(r"{(\w+)}", rule.route)
        values = red.values_for(rule)
        theirs = "/" + rule.route.format(**values)
        none = "/" + rule.route.format(**{name: NOBODYS.get(name, "nobodys") for name in names})
        for method in rule.scopes:
            tried += 1
            seen, unseen = ask(blue, method, theirs), ask(blue, method, none)
            assert (seen.status_code, unseen.status_code) in {(404, 404), (400, 400), (503, 503)}, (
                method,
                theirs,
                seen.status_code,
            )
            said = text(seen)
            for name in names:
                said = said.replace(values[name], NOBODYS.get(name, "nobodys"))
            assert said == text(unseen), (method, theirs)
            assert red.mark not in said
    assert tried > 50


def test_the_owner_does_find_these_things() -> None:
    """Else the test above would pass on a typing mistake."""
    red = Everything(RED)
    owner = holder(RED, "inference", "read", "write")
    missing = [
        rule.route
        for rule in RULES.values()
        if rule.whose == "own"
        and "GET" in rule.scopes
        and ask(owner, "GET", "/" + rule.route.format(**red.values_for(rule))).status_code == 404
    ]
    # A batch of the other dialect, files and rows no version has yet, a page nobody wrote.
    assert set(missing) == {
        "v1/conversations/{conversation_id}/items/{item_id}",
        "v1/messages/batches/{batch_id}",
        "v1/messages/batches/{batch_id}/results",
        "api/datasets/{dataset_id}/rows/{ordinal}",
        "api/datasets/{dataset_id}/files/{name}",
    }


def test_lists_hold_nothing_of_another_project() -> None:
    red = Everything(RED)
    blue = holder(BLUE, "inference", "read", "write")
    for rule in RULES.values():
        if rule.whose != "project" or "GET" not in rule.scopes:
            continue
        path = f"/{rule.route}"
        answer = ask(blue, "GET", path)
        said = text(answer)
        assert answer.status_code < 500 or answer.status_code == 503, path
        assert red.mark not in said, path
        assert all(value not in said for name, value in red.values.items() if name not in {"ordinal", "question_id"}), path
        if "/memory/" in path and not path.endswith("/vaults"):
            assert ask(blue, "GET", f"{path}?vault={red.vault.name}").status_code in {400, 404, 405}, path


#: Routes for everybody: how the server is, and the way in.
OPEN = {"health", "livez", "readyz", "favicon.ico", "login/", "logout/", "admin/login/", "admin/logout/"}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nobody_sees_or_does_anything_on_a_page_without_signing_in(method: str) -> None:
    stranger = Client(headers={"host": "localhost"}, raise_request_exception=False)
    tried = 0
    for route, _ in routes(get_resolver()):
        if _is_guarded(f"/{route}") or route in OPEN:
            continue
        tried += 1
        path = "/" + re.sub(r"{(\w+)}", lambda name: "1" if name[1] == "vault" else "x", route)
        answer = stranger.generic(method, path)
        turned_away = answer.status_code == 302 and answer["Location"].startswith(("/login/", "/admin/login/"))
        assert turned_away or answer.status_code in {403, 404, 405}, (path, answer.status_code)
    assert tried > 100


def pages() -> dict[str, str]:
    lines = (Path(__file__).parent / "pages.txt").read_text().splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def test_every_page_has_its_scope_and_a_role_without_it_is_turned_away() -> None:
    wanted = pages()
    here = {
        route or "/" for route, _ in routes(get_resolver()) if not _is_guarded(f"/{route}") and not route.startswith("admin/")
    }
    assert here - OPEN == set(wanted)
    for role, held in ROLES.items():
        person = signed_in(f"a-{role}", role, BLUE)
        for route, scope in wanted.items():
            path = "/" + re.sub(r"{(\w+)}", lambda name: "1" if name[1] == "vault" else "x", route.strip("/"))
            if scope == "-" or scope in held:
                assert person.get(path).status_code != 403, (role, path)
            else:
                # A form that is only sent answers no GET, whoever asks.
                assert person.get(path).status_code in {403, 405}, (role, path)
                assert person.post(path).status_code == 403, (role, path)
