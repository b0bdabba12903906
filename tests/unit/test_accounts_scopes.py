"""Which scope a request needs, and what opens it."""

import pytest

from mlxplatform.accounts.scopes import ADMIN, ASK_OR_READ, INFERENCE, READ, WRITE, grants, needed


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
        ("GET", "/v1/models", ASK_OR_READ),
        ("GET", "/v1/responses/resp_1", ASK_OR_READ),
        ("GET", "/v1/chat/completions", READ),
        ("GET", "/api/requests", READ),
        ("GET", "/v1/files", READ),
        ("GET", "/api/retention", READ),
        ("PATCH", "/api/retention", ADMIN),
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
    assert grants((INFERENCE,), ASK_OR_READ), "SDKs list models before they ask"
    assert grants((READ,), ASK_OR_READ)
    assert not grants((WRITE,), ASK_OR_READ)
    assert not grants((INFERENCE,), READ), "a key in an application does not read what others stored"
    assert not grants((INFERENCE,), WRITE)
    assert not grants((READ,), INFERENCE)
    assert not grants((READ, WRITE, INFERENCE), ADMIN)
