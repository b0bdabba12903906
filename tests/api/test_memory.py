"""``/api/memory/*`` and the MCP endpoint as a client sees them: from an import to a reviewed page."""

import json

import pytest

from mlxplatform.accounts import keys
from mlxplatform.accounts.models import AuditEntry
from mlxplatform.jobs.models import Job
from mlxplatform.memory import runs
from mlxplatform.memory.models import Change, Vault
from mlxplatform.memory.vault import Wiki
from tests.fixtures.memory_notes import CORPUS, Ctx, Scripted, jsonl

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def call(client, settings, tmp_path):
    settings.ENV = type(settings.ENV)({**settings.ENV.values, "home": tmp_path}, "", "")

    def send(method, path, body=None):
        options = {"data": json.dumps(body), "content_type": "application/json"} if body is not None else {}
        if method == "post" and body is None:
            options = {"content_type": "application/json"}
        response = getattr(client, method)(path, headers={"host": "localhost"}, **options)
        return response.status_code, response.json() if response.content else None

    return send


@pytest.fixture
def reviewed(call):
    """A vault with one proposed page, made the way a client makes it (the jobs run here)."""
    call("post", "/api/memory/init", {})
    status, answer = call("post", "/api/memory/import", {"format": "jsonl", "content": jsonl(CORPUS).decode()})
    assert status == 202, answer
    result = runs.run_import(Ctx(Job.objects.get(pk=answer["job"]["id"]).config))
    assert result["added"] == 3
    status, answer = call("post", "/v1/memory/synthesize", {})
    assert status == 202 and answer["job"]["kind"] == "memory_synthesis"
    job = Job.objects.get(pk=answer["job"]["id"])
    noted = AuditEntry.objects.filter(action__in=["memory.import", "memory.synthesize"]).values_list("action", "actor")
    assert sorted(noted) == [("memory.import", "local"), ("memory.synthesize", "local")]
    runs.synthesize(Ctx(job.config, job.id), Vault.objects.get(), Scripted())
    return call


def test_without_a_vault_reading_says_so_and_offers_one(call):
    for route in ("status", "list", "search?q=x", "article?name=x", "links?name=x", "history?name=x"):
        status, answer = call("get", f"/api/memory/{route}")
        assert (status, answer["ok"], answer["enabled"]) == (200, False, False)
        assert "/" not in answer["error"].replace("/api/memory/init", "")


def test_making_a_vault_is_idempotent_and_complete(call):
    status, made = call("post", "/api/memory/init", {})
    assert status == 200 and made["git_initialized"] and len(made["created"]) == 12
    assert call("post", "/api/memory/init", {})[1]["already_set_up"] is True
    assert call("get", "/api/memory/status")[1]["enabled"] is True
    names = [page["name"] for page in call("get", "/api/memory/list?folder=Meta")[1]["pages"]]
    assert len(names) == 10 and "Editorial_Guidelines" in names


def test_a_change_is_a_card_with_diff_and_source_turns_and_can_be_accepted(reviewed):
    call = reviewed
    listed = call("get", "/api/memory/changes")[1]["changes"]
    assert [change["page"] for change in listed] == ["Lelit_Anna"]
    card = call("get", f"/api/memory/changes/{listed[0]['id']}")[1]["change"]
    assert card["diff"].startswith("--- /dev/null\n+++ b/Lelit_Anna.md") and "+# Lelit Anna" in card["diff"]
    assert "57 mm gasket" in card["sources"][1]["turns"][1]["text"] and 0 < card["confidence"] <= 1
    status, answer = call("post", f"/api/memory/changes/{card['id']}/accept", {"base": card["base"]})
    assert status == 200 and answer["change"]["state"] == "accepted" and len(answer["change"]["commit"]) == 40
    page = call("get", "/api/memory/article?name=lelit anna")[1]["article"]
    assert page["name"] == "Lelit_Anna" and page["infobox"]["kind"] == "thing" and len(page["sources"]) == 2
    assert call("get", "/api/memory/search?q=gasket")[1]["hits"][0]["name"] == "Lelit_Anna"
    assert call("get", "/api/memory/section?name=Lelit_Anna&section=parts")[1]["section"] == "Parts"
    commits = call("get", "/api/memory/history?name=Lelit_Anna")[1]["commits"]
    assert [commit["change"] for commit in commits] == [card["id"]]
    assert "+# Lelit Anna" in call("get", f"/api/memory/diff?name=Lelit_Anna&rev={commits[0]['rev'][:8]}")[1]["diff"]
    status, answer = call("post", f"/api/memory/changes/{card['id']}/revert")
    assert answer["change"]["state"] == "reverted"
    assert call("get", "/api/memory/article?name=Lelit_Anna")[0] == 404
    assert len(call("get", "/api/memory/history?name=Lelit_Anna")[1]["commits"]) == 2


def test_a_page_that_changed_under_the_reviewer_is_not_overwritten(reviewed):
    change = Change.objects.get()
    body = {"text": "# Lelit Anna\n\nMine.\n", "base": "0123456789abcdef"}
    status, answer = reviewed("post", f"/api/memory/changes/{change.id}/accept", body)
    assert (status, answer["code"], answer["field"]) == (409, "page_changed", "base")


def test_rejecting_and_forgetting(reviewed):
    call = reviewed
    change = Change.objects.get()
    assert call("post", f"/api/memory/changes/{change.id}/reject")[1]["change"]["state"] == "rejected"
    assert call("post", f"/api/memory/changes/{change.id}/accept", {})[0] == 409
    status, answer = call("post", "/api/memory/forget", {"id": "chat-2"})
    assert status == 200 and "never rewritten" in answer["note"]
    assert call("post", "/api/memory/forget", {"id": "chat-2"})[0] == 404


def test_runs_tell_what_they_did(reviewed):
    run = reviewed("get", "/api/memory/runs")[1]["runs"][0]
    assert run["state"] == "done" and run["report"]["proposed"] == 1
    assert reviewed("get", f"/api/memory/runs/{run['id']}")[1]["changes"][0]["kind"] == "create"
    dry = reviewed("post", "/api/memory/synthesize", {"dry": True})[1]
    assert [stage["stage"] for stage in dry["stages"]] == list(runs.STAGES)
    assert Job.objects.filter(kind="memory_synthesis").count() == 1


def test_the_order_of_stages_is_told_the_same_everywhere():
    from mlxplatform.memory import orders

    assert list(orders.STAGES) == list(runs.STAGES)


async def test_a_get_only_previews(async_client, reviewed):
    response = await async_client.get("/v1/memory/synthesize?dry=1")
    assert response.status_code == 200, response.content
    frames = b"".join([chunk async for chunk in response.streaming_content]).decode()
    assert '"type":"summary"' in frames and frames.endswith("data: [DONE]\n\n")
    assert await Job.objects.filter(kind="memory_synthesis").acount() == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("post", "init", {"name": "../x"}, 400, "name"),
        ("post", "init", {"policy": "yolo"}, 400, "policy"),
        ("post", "init", {"root": "/etc"}, 400, "root"),
        ("post", "init", {"min_chunks": 0}, 400, "min_chunks"),
        ("post", "init", {"min_chunks": True}, 400, "min_chunks"),
        ("get", "search", None, 400, "q"),
        ("get", "search?q=x&limit=0", None, 400, "limit"),
        ("get", "search?q=x&limit=201", None, 400, "limit"),
        ("get", "search?q=x&scope=disk", None, 400, "scope"),
        ("get", "search?q=x&mode=magic", None, 400, "mode"),
        ("get", "article?name=../../etc/passwd", None, 400, "name"),
        ("get", "article?name=%00", None, 400, "name"),
        ("get", "article?name=nothing", None, 404, "name"),
        ("get", "article?name=x&folder=.git", None, 400, "folder"),
        ("get", "diff?name=x&rev=HEAD", None, 400, "rev"),
        ("get", "diff?name=x&rev=--output=/tmp/x", None, 400, "rev"),
        ("get", "diff?name=x&rev=abcd", None, 400, "rev"),
        ("get", "list?folder=../..", None, 400, "folder"),
        ("get", "changes?state=odd", None, 400, "state"),
        ("get", "changes/none", None, 404, None),
        ("post", "changes/none/accept", {}, 404, None),
        ("get", "runs/none", None, 404, None),
        ("post", "runs/none/revert", {}, 404, None),
        ("post", "import", {"format": "word", "content": "x"}, 400, "format"),
        ("post", "import", {"format": "jsonl"}, 400, "file_id"),
        ("post", "import", {"format": "jsonl", "file_id": "file-none"}, 404, "file_id"),
        ("post", "import", {"format": "jsonl", "content": "x", "source": "history"}, 400, "source"),
        ("post", "synthesize", {"vault": "none"}, 404, "vault"),
        ("post", "synthesize", {"stages": ["dance"]}, 400, "stages"),
        ("post", "synthesize", {"conversations": "all"}, 400, "conversations"),
        ("post", "synthesize", {"x": 1}, 400, "x"),
        ("post", "forget", {}, 400, "conversation"),
        ("post", "forget", {"statement": "x"}, 400, "statement"),
        ("post", "forget", {"page": "a", "id": "b"}, 400, "conversation"),
        ("post", "questions", {"question": "x"}, 400, "expected"),
        ("post", "questions", {"question": "x", "expected": [1]}, 400, "expected"),
        ("post", "tools/memory_read", {"arguments": {}}, 400, "arguments.name"),
        ("post", "tools/none", {"arguments": {}}, 404, "name"),
        ("put", "init", {}, 405, None),
    ],
)
def test_bad_input_is_named_and_nothing_is_started(call, method, path, body, status, field):
    call("post", "/api/memory/init", {})
    answer = call(method, f"/api/memory/{path}", body)
    assert (answer[0], answer[1]["ok"], answer[1]["field"]) == (status, False, field), answer
    assert "Traceback" not in str(answer) and "/tmp" not in str(answer[1]["error"])
    assert Job.objects.count() == 0


def test_mcp_lists_and_runs_read_only_tools(reviewed):
    reviewed("post", f"/api/memory/changes/{Change.objects.get().id}/accept", {})

    def rpc(method, **params):
        return reviewed("post", "/mcp/memory", {"jsonrpc": "2.0", "id": 7, "method": method, "params": params})[1]

    hello = rpc("initialize", protocolVersion="2025-03-26", capabilities={})["result"]
    assert hello["protocolVersion"] == "2025-03-26" and "tools" in hello["capabilities"]
    listed = rpc("tools/list")["result"]["tools"]
    assert {tool["name"] for tool in listed} >= {"memory_resolve", "memory_read", "memory_section", "memory_search"}
    assert all(tool["annotations"]["readOnlyHint"] for tool in listed)
    assert (
        rpc("tools/call", name="memory_resolve", arguments={"name": "the lelit anna"})["result"]["structuredContent"]["page"]
        == "Lelit_Anna"
    )
    assert (
        rpc("tools/call", name="memory_section", arguments={"name": "Lelit_Anna", "section": "Nope"})["result"]["isError"] is True
    )
    assert rpc("resources/list")["error"]["code"] == -32601
    assert rpc("tools/call", name="rm")["error"]["code"] == -32602
    assert reviewed("post", "/mcp/memory", {"jsonrpc": "2.0", "method": "notifications/initialized"})[0] == 202


def test_another_projects_vault_does_not_exist(call):
    other = Vault.objects.create(name="wiki", project="other")
    Wiki.of(other).set_up()
    Wiki.of(other).path("Secret").write_text("# Secret\n\nTheirs alone.\n")
    assert call("get", "/api/memory/status")[1]["enabled"] is False
    assert call("get", "/api/memory/status?vault=wiki")[0] == 404
    assert call("post", "/api/memory/synthesize", {"vault": "wiki"})[0] == 404
    status, made = call("post", "/api/memory/init", {"name": "wiki"})
    assert status == 200 and made["git_initialized"]
    assert call("get", "/api/memory/article?name=Secret")[0] == 404
    assert Vault.objects.get(project="default").folder == "wiki" and other.folder == "@other/wiki"
    assert call("post", "/api/memory/init", {"name": "Wiki"})[1]["vault"]["name"] == "wiki"


@pytest.mark.parametrize("project", ["a/b", "..", "A", "ä", "x" * 64])
def test_every_projects_vault_has_a_folder_of_its_own(project):
    vault = Vault.objects.create(name="wiki", project=project)
    top, _, name = vault.folder.partition("/")
    assert top.startswith("@") and "/" not in name and ".." not in vault.folder and vault.folder == vault.folder.lower()


def test_a_vault_from_before_keeps_its_folder_from_a_new_one():
    Vault.objects.create(name="wiki", project="other", folder="wiki")
    assert Vault.objects.create(name="wiki").folder == "wiki@2"


def test_a_key_opts_itself_in_and_an_administrator_any_key_of_the_project(call, client):
    call("post", "/api/memory/init", {})
    assert call("patch", "/api/memory/vaults/wiki", {"history_keys": ["self"]})[1]["field"] == "history_keys[0]"
    own, secret = keys.create("mine")
    other, _ = keys.create("other")
    foreign, _ = keys.create("foreign", project="elsewhere")
    _, admins_secret = keys.create("admin", scopes=["admin"])

    def patch(secret, wanted):
        body = json.dumps({"history_keys": wanted})
        headers = {"host": "localhost", "authorization": f"Bearer {secret}"}
        answer = client.patch("/api/memory/vaults/wiki", data=body, content_type="application/json", headers=headers)
        return answer.status_code, answer.json()

    status, answer = patch(secret, ["self", own.id])
    assert status == 200 and answer["vault"]["history_keys"] == [own.id]
    assert patch(secret, ["self", other.id])[0] == 403
    assert patch(admins_secret, [own.id, other.id])[1]["vault"]["history_keys"] == [own.id, other.id]
    assert patch(secret, [other.id])[1]["vault"]["history_keys"] == [other.id], "a key may leave"
    for wrong in ([foreign.id], ["key_none"], [3], [""], "self"):
        assert patch(admins_secret, wrong)[0] == 400
    assert Vault.objects.get().history_keys == [other.id]
    with_keys = client.post(
        "/api/memory/vaults",
        data=json.dumps({"name": "second", "history_keys": ["self"]}),
        content_type="application/json",
        headers={"host": "localhost", "x-api-key": secret},
    )
    assert with_keys.json()["vault"]["history_keys"] == [own.id]


def test_the_mcp_server_speaks_over_standard_input(reviewed, monkeypatch, capsysbinary):
    import io
    import sys
    from types import SimpleNamespace

    from django.core.management import call_command

    lines = [{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    raw = b"\n".join(json.dumps(line).encode() for line in lines) + b"\n{broken\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw)))
    call_command("memory_mcp")
    answers = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert len(answers) == 2
    assert answers[0]["result"]["tools"] and answers[1]["error"]["code"] == -32700
