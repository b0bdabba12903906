"""Which scope a request needs, and what opens it."""

import pytest

from mlxplatform.accounts.scopes import ADMIN, INFERENCE, READ, WRITE, grants, needed


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/chat/completions", INFERENCE),
        ("POST", "/v1/messages", INFERENCE),
        ("POST", "/v1/messages/count_tokens", INFERENCE),
        ("POST", "/v1/messages/batches", WRITE),
        ("POST", "/v1/batches", WRITE),
        ("POST", "/v1/files", WRITE),
        ("DELETE", "/v1/files/file-1", WRITE),
        ("GET", "/v1/models", READ),
        ("POST", "/api/jobs/job_1/cancel", WRITE),
        ("GET", "/api/keys", ADMIN),
        ("POST", "/api/keys", ADMIN),
        ("GET", "/api/audit", ADMIN),
        ("POST", "/v1/chat/completionsX", WRITE),
    ],
)
def test_each_request_needs_one_scope(method: str, path: str, scope: str) -> None:
    assert needed(method, path) == scope


def test_admin_opens_everything_and_others_only_their_own() -> None:
    assert all(grants((ADMIN,), scope) for scope in (INFERENCE, READ, WRITE, ADMIN))
    assert grants((INFERENCE,), READ), "SDKs list models before they ask"
    assert not grants((INFERENCE,), WRITE)
    assert not grants((READ,), INFERENCE)
    assert not grants((READ, WRITE, INFERENCE), ADMIN)
