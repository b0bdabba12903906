"""Orders to fine-tune, through both APIs: what is refused before a job exists, and what "auto" becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from mlxplatform.datasets import publish
from mlxplatform.files import service as files
from mlxplatform.files.models import StoredFile
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.training.openai import parse
from tests.fixtures import tiny_model
from tests.fixtures.training_data import TROUBLES, published, spoil

pytestmark = pytest.mark.django_db(transaction=True)

ROW = {"messages": [{"role": "user", "content": "code?"}, {"role": "assistant", "content": "ZX-81"}]}
PREFERENCE = {"prompt": "code?", "chosen": "ZX-81", "rejected": "no"}


@pytest.fixture(scope="module", autouse=True)
def model() -> None:
    tiny_model.install(settings.HOME, "tiny-order")


def upload(content: bytes | list[dict[str, Any]] | None = None, purpose: str = "fine-tune") -> str:
    if not isinstance(content, bytes):
        content = b"".join(json.dumps(row).encode() + b"\n" for row in content or [ROW] * 12)
    return files.store([content], "rows.jsonl", purpose).id


def post(path: str, body: Any) -> tuple[int, dict[str, Any]]:
    answer = Client().post(path, json.dumps(body), content_type="application/json")
    return answer.status_code, json.loads(answer.content)


def create(**body: Any) -> tuple[int, dict[str, Any]]:
    return post("/v1/fine_tuning/jobs", {"model": "tiny-order", **body})


def test_an_order_shows_what_auto_became() -> None:
    status, job = create(training_file=upload(), suffix="My Bot!", metadata={"team": "a"}, seed=5)

    assert status == 200, job
    assert job["object"] == "fine_tuning.job" and job["id"].startswith("ftjob-")
    assert (job["status"], job["model"], job["seed"], job["fine_tuned_model"]) == ("queued", "tiny-order", 5, None)
    assert job["hyperparameters"] == {"batch_size": 1, "learning_rate_multiplier": 1.0, "n_epochs": 3}
    assert job["method"]["type"] == "supervised" and job["metadata"] == {"team": "a"}
    assert (job["result_files"], job["error"], job["finished_at"], job["trained_tokens"]) == ([], None, None, None)
    stored = Job.objects.get()
    assert (stored.config["suffix"], stored.config["epochs"], stored.config["iters"]) == ("my-bot", 3.0, None)
    assert str(settings.HOME) not in json.dumps(stored.config)


def test_a_runs_own_configuration_orders_the_same_run() -> None:
    create(training_file=upload(), suffix="again", seed=5, mlx={"rank": 4, "steps_per_eval": 7})
    first = Job.objects.get()
    exported = {name: value for name, value in first.config.items() if name != "data"}  # what run.json holds
    exported |= {"lineage": {"files": {}}, "job": first.id, "name": "ft:…", "output": "ad_1", "formats": ["messages"]}

    for config in (first.config, exported):
        status, answer = post("/api/finetune/submit", config)

        assert status == 200, answer
        assert Job.objects.get(pk=answer["job_id"]).config == first.config
    status, answer = post("/api/finetune/submit", {**exported, "revision": "0" * 16})
    assert (status, answer["field"]) == (400, "revision")


def test_given_hyperparameters_and_mlx_fields_are_kept() -> None:
    hyper = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 0.5}
    method = {"type": "dpo", "dpo": {"hyperparameters": {**hyper, "beta": 0.2}}}
    status, job = create(training_file=upload([PREFERENCE] * 8), method=method, mlx={"rank": 4, "target_modules": ["q_proj"]})

    assert status == 200, job
    config = Job.objects.get().config
    assert (config["method"], config["dpo_beta"], config["rank"], config["batch_size"]) == ("dpo", 0.2, 4, 4)
    assert config["learning_rate"] == pytest.approx(2.5e-5)
    assert job["method"]["dpo"]["hyperparameters"]["beta"] == 0.2


def test_rows_are_cut_at_the_models_window_where_that_is_less_than_the_default() -> None:
    tiny_model.install(settings.HOME, "short-order", context=256)

    assert create(model="short-order", training_file=upload())[0] == 200
    assert create(training_file=upload())[0] == 200
    assert [job.config["max_seq_length"] for job in Job.objects.order_by("created_at")] == [256, 512]


def test_a_model_without_a_chat_template_learns_from_text_only() -> None:
    folder = tiny_model.install(settings.HOME, "wordless-order")
    (folder / "tokenizer_config.json").write_text("{}")

    for rows in ([ROW] * 3, [ROW, {"text": "once"}]):
        status, answer = create(model="wordless-order", training_file=upload(rows))
        assert (status, answer["error"]["param"]) == (400, "model") and "no chat template" in answer["error"]["message"]
    assert create(model="wordless-order", training_file=upload([{"text": "once"}] * 3))[0] == 200


@pytest.mark.parametrize("fields", [{"early_stop_patience": 3}, {"keep": "best"}])
def test_a_wish_that_needs_validation_rows_is_warned_of_without_any(fields: dict[str, Any]) -> None:
    body = {"model": "tiny-order", "training_file": upload(), **fields}
    (name,) = fields

    said = post("/api/finetune/submit", body)[1]["warnings"]
    assert f"{name} has nothing to go by: the run has no validation rows." in said
    for more in ({"valid_fraction": 0.1}, {"validation_file": upload()}):
        assert not any("nothing to go by" in line for line in post("/api/finetune/submit", {**body, **more})[1]["warnings"])


@pytest.mark.parametrize("side", ["preferred_output", "non_preferred_output"])
def test_a_preference_needs_an_answer_of_the_assistant_on_both_sides(side: str) -> None:
    row = {
        "input": {"messages": [{"role": "user", "content": "code?"}]},
        "preferred_output": [{"role": "assistant", "content": "ZX-81"}],
        "non_preferred_output": [{"role": "assistant", "content": "no"}],
    }
    status, answer = create(training_file=upload([row | {side: [{"role": "user", "content": "ZX-81"}]}]), method={"type": "dpo"})

    assert (status, answer["error"]["param"]) == (400, "training_file") and "turn of the assistant" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"training_file": "file-none"}, 404, "training_file"),
        ({"training_file": None}, 400, "training_file"),
        ({"training_file": 7}, 400, "training_file"),
        ({"training_file": "../../etc/passwd"}, 404, "training_file"),
        ({"validation_file": "file-none"}, 404, "validation_file"),
        ({"model": "nothing-here"}, 404, "model"),
        ({"model": "../../etc"}, 404, "model"),
        ({"model": "/etc"}, 404, "model"),
        ({"suffix": "x" * 65}, 400, "suffix"),
        ({"suffix": "!!!"}, 400, "suffix"),
        ({"seed": -1}, 400, "seed"),
        ({"method": {"type": "reinforcement"}}, 400, "method.type"),
        ({"method": {"type": "other"}}, 400, "method.type"),
        ({"hyperparameters": {"n_epochs": 0}}, 400, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": "many"}}, 400, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"steps": 3}}, 400, "hyperparameters.steps"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]}, 400, "integrations"),
        ({"metadata": {"k": 5}}, 400, "metadata"),
        ({"mlx": {"ranks": 5}}, 400, "mlx.ranks"),
        ({"mlx": {"rank": 0}}, 400, "mlx.rank"),
        ({"mlx": {"max_seq_length": 4096}}, 400, "mlx.max_seq_length"),
        ({"mlx": {"learning_rate": 10**400}}, 400, "mlx.learning_rate"),
        ({"mlx": {"keep_checkpoints": 21}}, 400, "mlx.keep_checkpoints"),
        ({"mlx": {"fine_tune_type": "dora", "keep_checkpoints": 1}}, 400, "mlx.keep_checkpoints"),
        ({"method": {"type": ["dpo"]}}, 400, "method.type"),
        ({"method": {}}, 400, "method.type"),
        ({"method": {"type": "supervised", "dpo": {}}}, 400, "method.dpo"),
        ({"method": {"type": "supervised", "supervised": 5}}, 400, "method.supervised"),
        ({"method": {"type": "supervised", "supervised": {"epochs": 1}}}, 400, "method.supervised.epochs"),
        ({"method": {"type": "supervised", "supervised": {"hyperparameters": []}}}, 400, "method.supervised.hyperparameters"),
        ({"method": {"type": "dpo", "dpo": {"hyperparameters": "auto"}}}, 400, "method.dpo.hyperparameters"),
        ({"mlx": {"fine_tune_type": "full", "output": "../out"}}, 400, "mlx.output"),
        ({"mlx": {"target_modules": ["q_proj", "w1"]}}, 400, "mlx.target_modules"),
        ({"mlx": {"target_modules": ["input_layernorm"]}}, 400, "mlx.target_modules"),
        ({"hyperparameters": {"n_epochs": 10**400}}, 400, "hyperparameters.n_epochs"),
        ({"surprise": 1}, 400, "surprise"),
    ],
)
def test_impossible_orders_are_refused_by_field_and_make_no_job(change: dict[str, Any], status: int, param: str) -> None:
    got, answer = create(**{"training_file": upload(), **change})

    assert (got, answer["error"]["param"]) == (status, param), answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert str(settings.HOME) not in answer["error"]["message"]
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    "content",
    [
        b"\n\n",
        b"[{}]",
        b"not json\n",
        b'{"messages": []}\n',
        b'{"prompt": "x", "completion": " "}\n',
        b'{"foo": 1}\n',
        b"\xff\xfe\x00",
        b'{"messages": [{"role": ["user"], "content": "q"}]}\n',
    ],
)
def test_files_without_a_usable_row_are_refused_at_creation(content: bytes) -> None:
    got, answer = create(training_file=upload(content))

    assert (got, answer["error"]["param"]) == (400, "training_file"), answer
    assert Job.objects.count() == 0


def test_a_line_that_is_no_json_refuses_the_file_and_names_each_such_line() -> None:
    row = json.dumps(ROW).encode()
    content = row + b",\n" + row + b"\n{'a': 1}\n" + row + b"\n"
    status, answer = create(training_file=upload(content))
    assert status == 400
    assert answer["error"]["param"] == "training_file"
    assert "2 lines" in answer["error"]["message"]
    assert "line 1" in answer["error"]["message"] and "line 3" in answer["error"]["message"]
    assert not Job.objects.exists()


def test_files_of_another_purpose_or_deleted_ones_are_refused() -> None:
    assert create(training_file=upload(purpose="batch"))[0] == 400
    gone = upload()
    files.delete(files.find(gone, None))
    assert create(training_file=gone)[0] == 404
    assert create(training_file=upload([PREFERENCE] * 3))[0] == 400  # preferences are not for supervised training


@pytest.mark.parametrize("param", ["training_file", "validation_file"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_file_that_cannot_be_used_is_refused_at_creation_by_field(trouble: str, param: str) -> None:
    file, other = upload(), upload()
    spoil(file, trouble)

    status, answer = create(**{"training_file": other, param: file})

    assert (status, answer["error"]["code"], answer["error"]["param"]) == (*TROUBLES[trouble], param), answer
    assert str(settings.HOME) not in answer["error"]["message"]
    assert Job.objects.count() == 0


@pytest.mark.parametrize("param", ["training_file", "validation_file"])
def test_another_projects_file_is_as_if_it_were_not_there(param: str) -> None:
    theirs = upload()
    StoredFile.objects.filter(pk=theirs).update(project="other")

    with pytest.raises(Refusal) as refused:
        parse.order({"model": "tiny-order", "training_file": upload(), param: theirs}, "default")

    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "file_not_found", param)


def test_a_dataset_whose_files_are_gone_or_others_is_refused_by_field() -> None:
    number = 0
    for trouble, expected in (("missing", (404, "file_not_found")), ("changed", (400, "file_content_damaged"))):
        for part in ("train.jsonl", "valid.jsonl"):
            number += 1
            version = published([ROW] * 12, [ROW])
            path = publish.path_of(version.location, part)
            path.unlink() if trouble == "missing" else path.write_bytes(path.read_bytes()[:-2] + b" }")

            status, answer = post("/api/finetune/submit", {"model": "tiny-order", "dataset": version.dataset_id})

            assert (status, answer["code"], answer["field"]) == (*expected, "dataset"), answer
    assert Job.objects.count() == 0


def test_validating_on_the_training_file_is_allowed_and_said() -> None:
    file = upload()
    status, _ = create(training_file=file, validation_file=file)

    assert status == 200
    warnings = Job.objects.get().config["data"]["inspection"]["warnings"]
    assert any("validation rows are training rows too" in warning for warning in warnings)


def test_a_file_a_live_run_needs_keeps_its_bytes() -> None:
    file = upload()
    create(training_file=file)

    assert {file} == set().union(*(holder([file, "file-other"]) for holder in files.holders))


def test_lists_page_by_id_and_filter_by_metadata() -> None:
    made = [create(training_file=upload(), metadata={"n": str(n)})[1]["id"] for n in range(3)]
    client = Client()

    first = client.get("/v1/fine_tuning/jobs?limit=2").json()
    second = client.get(f"/v1/fine_tuning/jobs?limit=2&after={first['data'][-1]['id']}").json()

    assert [job["id"] for job in first["data"] + second["data"]] == made[::-1]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert [job["id"] for job in client.get("/v1/fine_tuning/jobs?metadata[n]=1").json()["data"]] == [made[1]]
    events = f"/v1/fine_tuning/jobs/{first['data'][0]['id']}/events"
    assert client.get(f"{events}?after={client.get(events).json()['data'][0]['id']}").status_code == 200
    for after in ("x", "ftevent-1", f"ftevent-{first['data'][1]['id'].removeprefix('ftjob-')}-1"):
        assert client.get(f"{events}?after={after}").status_code == 400
    for query in ("limit=0", "limit=x", "limit=101", "after=ftjob-nothing", "metadata=5"):
        assert client.get(f"/v1/fine_tuning/jobs?{query}").status_code in {400, 404}


def test_cancel_pause_and_resume_answer_with_the_job() -> None:
    job = create(training_file=upload())[1]["id"]

    assert post(f"/v1/fine_tuning/jobs/{job}/pause", {})[1]["status"] == "paused"
    assert post(f"/v1/fine_tuning/jobs/{job}/resume", {})[1]["status"] == "queued"
    assert post(f"/v1/fine_tuning/jobs/{job}/cancel", {})[1]["status"] == "cancelled"
    assert post(f"/v1/fine_tuning/jobs/{job}/cancel", {})[0] == 200
    for action in ("pause", "resume"):
        status, answer = post(f"/v1/fine_tuning/jobs/{job}/{action}", {})
        assert (status, answer["error"]["param"]) == (400, "fine_tuning_job_id")
        assert "status is cancelled" in answer["error"]["message"]
    events = Client().get(f"/v1/fine_tuning/jobs/{job}/events").json()
    assert events["data"][0]["message"] == "The job is cancelled."
    assert {event["object"] for event in events["data"]} == {"fine_tuning.job.event"}
    assert Client().get("/v1/fine_tuning/jobs/ftjob-nothing").status_code == 404


def test_the_platforms_own_api_takes_the_older_names_and_tells_warnings() -> None:
    file = upload()
    status, answer = post("/api/finetune/submit", {"model_dir": "tiny-order", "training_file": file, "iters": 5})

    assert status == 200 and answer["ok"] and answer["job_id"].startswith("job_")
    assert answer["name"].startswith("ft:tiny-order:local:")
    assert any("no validation data" in warning for warning in answer["warnings"])
    status, inspected = post("/api/finetune/inspect-dataset", {"training_file": file})
    assert (inspected["n_train"], inspected["n_valid"], inspected["format"]) == (12, 0, "messages")
    assert inspected["train"]["duplicates"] == 11


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"iters": 5, "epochs": 1}, "epochs"),
        ({"revision": []}, "revision"),
        ({"revision": {"a": 1}}, "revision"),
        ({"iters": "5"}, "iters"),
        ({"dataset": "ds_nothing", "training_file": None}, "dataset"),
        ({"dataset": "ds_x"}, "training_file"),
        ({"method": "grpo"}, "method"),
        ({"method": "dpo", "fine_tune_type": "full"}, "fine_tune_type"),
        ({"output": "x"}, "output"),
        ({"mlp_split": True}, "mlp_split"),
        ({"num_layers": 0}, "num_layers"),
        ({"target_modules": "q_proj"}, "target_modules"),
    ],
)
def test_the_platforms_own_api_refuses_by_field(change: dict[str, Any], field: str) -> None:
    status, answer = post("/api/finetune/submit", {"model": "tiny-order", "training_file": upload(), **change})

    assert status in {400, 404}
    assert (answer["ok"], answer["field"]) == (False, field), answer
    assert Job.objects.count() == 0
