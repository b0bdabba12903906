"""Requests made by schemathesis, from our own API schema and from the table of routes: none may end in a failure of the
server, none gets in without a key, and no answer is other than the schema says."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from django.urls import Resolver404, resolve
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from mlxplatform.api.schema import document
from tests.api.test_permissions import RULES, methods_of
from tests.system.stack import Stack

#: What the protocols answer for what is not there or not now.
EXPLAINED = {501, 503}
#: What a route answers to nobody. A path that a client library tidies away, or a NUL, is refused before a key is asked for.
CLOSED = {400, 401, 403, 404, 405, 415}
#: Seconds an answer may take.
PATIENCE = 60
#: Would make a key, and so close the shared platform's door, or end the key that asks.
OF_KEYS = "/api/keys"
#: Routes that say how the server is, to anybody.
OPEN = {"/health", "/livez", "/readyz"}
#: Examples of each operation, the same on every run: in every run, and in the drill.
FEW, MANY = 1, 4


def whole() -> dict[str, Any]:
    return document(None)  # type: ignore[arg-type]


def written() -> dict[str, Any]:
    """Path → method → operation, as the schema has it."""
    paths: dict[str, Any] = whole()["paths"]
    return paths


def test_the_schema_has_every_guarded_route_and_no_other() -> None:
    paths = {path: {method.upper() for method in operations} for path, operations in written().items()}
    missing = {
        (method, rule.route) for rule in RULES.values() for method in rule.scopes if method not in paths.get(f"/{rule.route}", ())
    }
    assert missing == set()
    for path, methods in paths.items():
        example = path.replace("{ordinal}", "0").replace("{question_id}", "0")
        try:
            view = resolve(re.sub(r"{\w+}", "x", example)).func
        except Resolver404:
            pytest.fail(f"{path} is no route")
        assert methods - {"HEAD"} <= methods_of(view), path


def test_operations_have_one_name_each() -> None:
    names = [operation["operationId"] for operations in written().values() for operation in operations.values()]
    assert len(set(names)) == len(names)


#: Names that bodies and queries of some route know; each with values of every type.
NAMES = tuple(
    """
    model messages input prompt name template inputs dataset vault kind cron config url events purpose filename bytes yes
    project scopes stages adapter adapters file_id input_file_id endpoint completion_window requests metadata limit after
    before state order stream starting_after q context format start end version training_file repo_id items arguments rows
    """.split()  # noqa: SIM905
)
ANYTHING: dict[str, Any] = {}


def everything() -> dict[str, Any]:
    """An OpenAPI document of all guarded routes, made from the permission table: bodies hold anything under known names."""
    paths: dict[str, Any] = {}
    query = [{"name": name, "in": "query", "schema": {"type": "string", "maxLength": 20}} for name in NAMES[::3]]
    body = {"type": "object", "properties": dict.fromkeys(NAMES, ANYTHING), "additionalProperties": ANYTHING, "maxProperties": 6}
    for rule in RULES.values():
        names = re.findall(r"{(\w+)}", rule.route)
        params = [{"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names]
        for method in rule.scopes:
            operation: dict[str, Any] = {"parameters": [*params, *query], "responses": {"default": {"description": ""}}}
            if method in {"POST", "PATCH", "PUT"} or rule.route == "api/data":
                operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
            paths.setdefault(f"/{rule.route}", {})[method.lower()] = operation
    return {"openapi": "3.0.3", "info": {"title": "all", "version": "1"}, "paths": paths}


def faults_of(schema: Any, examples: int, secret: str | None = None, *, without: str = OF_KEYS) -> tuple[list[str], int]:
    """What is wrong with the answers to ``examples`` of each operation, with ``secret`` and then without; how many were tried."""
    faults: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operations = [result.ok() for result in schema.get_all_operations()]
    tried = 0
    for operation in operations:
        if operation.path.startswith(without):
            continue
        tried += 1

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def run(case: schemathesis.Case) -> None:
            asked = f"{case.method} {case.formatted_path} {case.query} {case.body!r}"
            headers = {"authorization": f"Bearer {secret}"} if secret else {}
            try:
                answer = case.call(timeout=PATIENCE, headers=headers)
                if fault := wrong_with(case, answer):
                    faults.append(f"{asked}: {fault}")
                if secret and case.path not in OPEN:
                    refused = case.call(timeout=PATIENCE)
                    if refused.status_code not in CLOSED:
                        faults.append(f"{asked}, without a key: {refused.status_code} {refused.text[:300]}")
            except requests.RequestException as error:
                faults.append(f"{asked}: {error!r}")

        run()
    return faults, tried


def wrong_with(case: schemathesis.Case, answer: Any) -> str:
    if (answer.status_code >= 500 and answer.status_code not in EXPLAINED) or "Traceback" in answer.text:
        return f"{answer.status_code} {answer.text[:300]}"
    try:
        case.validate_response(answer, checks=[status_code_conformance, content_type_conformance, response_schema_conformance])
    except (AssertionError, BaseExceptionGroup) as lie:
        return f"{answer.status_code} is not as written: {lie}"
    return ""


@pytest.mark.stack
def test_no_request_of_the_schema_breaks_the_server(stack: Stack) -> None:
    schema = schemathesis.openapi.from_url(f"{stack.base_url}/api/schema")
    faults, tried = faults_of(schema, FEW)
    assert not faults, "\n".join(faults)
    assert tried > 200
    assert stack.http.get("/health").status_code == 200


@pytest.mark.stack
@pytest.mark.drill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", ["the schema", "the routes"])
def test_no_request_to_any_route_breaks_the_server_with_or_without_a_key(make_stack: Callable[..., Stack], source: str) -> None:
    stack = make_stack()
    secret = stack.manage("keys", "create", "fuzz", "--scope", "admin").stdout.strip()
    schema = schemathesis.openapi.from_dict(whole() if source == "the schema" else everything())
    schema.config.update(base_url=stack.base_url)
    # Making keys is tried too; rotating or revoking the key of this test would end it.
    faults, tried = faults_of(schema, MANY, secret, without=f"{OF_KEYS}/")
    assert not faults, "\n".join(faults)
    assert tried > 200
    assert stack.http.get("/health").status_code == 200
