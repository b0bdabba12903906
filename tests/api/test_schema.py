"""Requests made from our own API schema, by schemathesis: none may end in a failure of the server."""

from __future__ import annotations

import warnings

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

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
