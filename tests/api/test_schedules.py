"""``/api/schedules`` as a client sees it."""

import json

import pytest

from mlxplatform.jobs import kinds
from mlxplatform.jobs import service as jobs
from mlxplatform.schedules import starters

pytestmark = pytest.mark.django_db(transaction=True)
BODY = {"name": "night", "kind": "scheduled_api_test", "config": {"a": 1}, "cron": "0 3 * * *", "timezone": "Europe/Lisbon"}


@pytest.fixture(autouse=True)
def _kind():
    kinds.register(kinds.JobKind("scheduled_api_test", "tests.fixtures.job_kinds:nothing"))
    starters.register(
        "scheduled_api_test",
        lambda config, project: None,
        lambda config, project, by, key: jobs.submit(
            "scheduled_api_test", config, project=project, created_by=by, idempotency_key=key
        ),
    )
    yield
    starters._starters.pop("scheduled_api_test")


@pytest.fixture
def call(client):
    def send(method, path, body=None):
        options = {"data": json.dumps(body), "content_type": "application/json"} if body is not None else {}
        if method == "post" and body is None:
            options = {"content_type": "application/json"}
        response = getattr(client, method)(path, headers={"host": "localhost"}, **options)
        return response.status_code, response.json()

    return send


def test_a_schedule_lives_its_life(call):
    status, made = call("post", "/api/schedules", BODY)
    assert status == 201 and made["ok"]
    schedule = made["schedule"]
    assert len(schedule["next_times"]) == 5 and schedule["next_at"] == schedule["next_times"][0]
    path = f"/api/schedules/{schedule['id']}"
    assert call("get", "/api/schedules")[1]["schedules"][0]["id"] == schedule["id"]
    assert call("patch", path, {"cron": "30 4 * * 1"})[1]["schedule"]["cron"] == "30 4 * * 1"
    assert call("post", f"{path}/pause")[1]["schedule"]["next_at"] is None
    status, ran = call("post", f"{path}/run")
    assert status == 200 and ran["job"].startswith("job_") and ran["schedule"]["last_job"]["state"] == "queued"
    status, again = call("post", f"{path}/run")
    assert (status, again["code"]) == (409, "schedule_busy")
    assert call("get", f"{path}/firings")[1]["firings"][0]["outcome"] == "started"
    assert call("post", f"{path}/resume")[1]["schedule"]["next_at"]
    assert call("delete", path)[1]["deleted"] is True
    assert call("get", path)[0] == 404


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"cron": "whenever"}, 400, "cron"),
        ({"cron": 5}, 400, "cron"),
        ({"timezone": "Mars/Olympus"}, 400, "timezone"),
        ({"kind": "no_such_kind"}, 400, "kind"),
        ({"misfire": "panic"}, 400, "misfire"),
        ({"name": ""}, 400, "name"),
        ({"name": "x" * 101}, 400, "name"),
        ({"config": []}, 400, "config"),
        ({"paused": "yes"}, 400, "paused"),
        ({"grace_seconds": -1}, 400, "grace_seconds"),
        ({"grace_seconds": True}, 400, "grace_seconds"),
        ({"colour": "red"}, 400, "colour"),
        ({"next_at": "2030"}, 400, "next_at"),
        ({"kind": "memory_synthesis", "config": {"vault": "none"}}, 400, "config"),
        ({"kind": "memory_import"}, 400, "kind"),
    ],
)
def test_bad_fields_are_named_and_nothing_is_kept(call, change, status, field):
    answer = call("post", "/api/schedules", {**BODY, **change})
    assert (answer[0], answer[1]["field"], answer[1]["ok"]) == (status, field, False)
    assert call("get", "/api/schedules")[1]["schedules"] == []


def test_a_name_is_taken_once(call):
    call("post", "/api/schedules", BODY)
    status, answer = call("post", "/api/schedules", BODY)
    assert (status, answer["field"]) == (409, "name")


def test_wrong_methods_and_unknown_ids(call):
    assert call("put", "/api/schedules", {})[0] == 405
    assert call("get", "/api/schedules/none")[0] == 404
    assert call("post", "/api/schedules/none/run")[0] == 404
