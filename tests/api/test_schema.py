"""Requests made from our own API schema, by schemathesis: none may end in a failure of the server."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from tests.api.test_permissions import RULES
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

#: Examples of each operation; the same on every run.
EXAMPLES = 6
#: What the protocols answer for what is not there or not now.
EXPLAINED = {501, 503}
PREFIXES = ("/v1/", "/api/chat", "/api/generate", "/api/embed", "/api/tags", "/health", "/readyz", "/stats")


def test_no_request_of_the_schema_breaks_the_server(stack: Stack) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_url(f"{stack.base_url}/api/schema")
        operations = [result.ok() for result in schema.get_all_operations()]
    tried = 0
    for operation in operations:
        if not operation.path.startswith(PREFIXES):
            continue
        tried += 1

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def run(case: schemathesis.Case) -> None:
            response = case.call(timeout=60)
            assert response.status_code < 500 or response.status_code in EXPLAINED, (case.path, case.body, response.text)

        run()
    assert tried > 20
    assert stack.http.get("/health").status_code == 200


#: Names that bodies and queries of some route know; each with values of every type.
NAMES = tuple(
    """
    model messages input prompt name template inputs dataset vault kind cron config url events purpose filename bytes yes
    project scopes stages adapter adapters file_id input_file_id endpoint completion_window requests metadata limit after
    before state order stream starting_after q context format start end version training_file repo_id items arguments rows
    """.split()  # noqa: SIM905
)
ANYTHING: dict[str, Any] = {}
#: Paths whose answer waits for work that is not there.
PATIENCE = 60


def everything() -> dict[str, Any]:
    """An OpenAPI document of all guarded routes, made from the permission table."""
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


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_no_request_to_any_route_breaks_the_server_with_or_without_a_key(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    secret = stack.manage("keys", "create", "fuzz", "--scope", "admin").stdout.strip()
    schema = schemathesis.openapi.from_dict(everything())
    schema.config.update(base_url=stack.base_url)
    tried = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operations = [result.ok() for result in schema.get_all_operations()]
    for operation in operations:
        # Rotating or revoking the key of this test would end it.
        if operation.path.startswith("/api/keys/"):
            continue
        tried += 1

        @settings(
            max_examples=2,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def run(case: schemathesis.Case) -> None:
            allowed = case.call(timeout=PATIENCE, headers={"authorization": f"Bearer {secret}"})
            assert allowed.status_code < 500 or allowed.status_code in EXPLAINED, (
                case.method,
                case.path,
                case.body,
                allowed.text,
            )
            assert "Traceback" not in allowed.text
            refused = case.call(timeout=PATIENCE)
            # A path that a client library tidies away, or a NUL, is refused before anybody asks for a key.
            assert refused.status_code in {400, 401, 403, 404, 405, 415}, (
                case.method,
                case.path,
                refused.status_code,
                refused.text,
            )

        run()
    assert tried > 150
    assert stack.http.get("/health").status_code == 200
