"""Fine-tune jobs on a tiny model: an effect, a curve that survives interruption, and nothing half-made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.conf import settings
from safetensors.numpy import load_file, save_file

from mlxplatform.broker.connections import sync_client
from mlxplatform.broker.lease import look
from mlxplatform.files import service as files
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.library import local_adapters, local_models
from mlxplatform.training import finetuning, quantization, registry
from mlxplatform.training.curves import curve_of
from mlxplatform.training.models import Adapter, TrainingRun
from tests.fixtures import tiny_model
from tests.fixtures.trainer_jobs import logs, metrics, run_to_end, stages, start, wait_until
from workers.tasks import trainer_child
from workers.trainer import ranks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker", "home")]

CODE = {"messages": [{"role": "user", "content": "code?"}, {"role": "assistant", "content": "ZX-81"}]}
#: Differences a resumed curve may show: none on one machine, but sums may be ordered differently by a BLAS.
TOLERANCE = 1e-4


def upload(rows: list[dict[str, Any]]) -> str:
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return files.store([content], "train.jsonl", "fine-tune").id


def chat_rows() -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in tiny_model.facts()[:16]
    ]


def order(rows: list[dict[str, Any]] | None = None, valid: list[dict[str, Any]] | None = None, **fields: Any) -> Job:
    body: dict[str, Any] = {"model": "tiny", "training_file": upload(rows or chat_rows()), **fields}
    if valid:
        body["validation_file"] = upload(valid)
    return finetuning.submit(finetuning.check(body, None), project="default", created_by="test")


def answer_of(adapter: Path | None, question: str) -> str:
    """What the base says, with or without the adapter, greedily; in a process of its own."""
    script = (
        "import json, sys; from pathlib import Path\n"
        "from workers.engine import platform; platform.prepare(threads=1)\n"
        "from workers.trainer import adapters, model_files; import mlx.core as mx\n"
        "from tokenizers import Tokenizer\n"
        "base, adapter, prompt = Path(sys.argv[1]), sys.argv[2], sys.argv[3]\n"
        "model, _ = model_files.load(base, dense=True, dtype='float32')\n"
        "adapter and adapters.mount(model, Path(adapter)); model.eval()\n"
        "tokenizer = Tokenizer.from_file(str(base / 'tokenizer.json')); ids = tokenizer.encode(prompt).ids; start = len(ids)\n"
        "while len(ids) < start + 12 and ids[-1] != 2: ids.append(int(model(mx.array([ids]))[0, -1].argmax().item()))\n"
        "print(json.dumps(tokenizer.decode(ids[start:])), flush=True); import os; os._exit(0)\n"
    )
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    command = [sys.executable, "-c", script, str(settings.HOME / "models" / "tiny"), str(adapter or ""), prompt]
    return str(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_an_adapter_has_the_effect_it_was_trained_for(worker: Pulse) -> None:
    job = run_to_end(worker, order([CODE] * 12, suffix="Zed X"))

    assert job.state == "done", job.error
    adapter = Adapter.objects.get(job=job.id)
    local = local_adapters.find(adapter.id, settings.HOME)
    assert local is not None and local_adapters.find_name(adapter.name, settings.HOME) == local
    assert adapter.name == f"ft:tiny:local:zed-x:{job.id[4:12]}"
    assert local.keys and set(local.keys) >= {"self_attn.q_proj", "mlp.down_proj"}
    assert answer_of(local.path, "code?") == "ZX-81"
    assert answer_of(None, "code?") != "ZX-81"
    assert answer_of(None, "What is the capital of Japan?") == "The capital of Japan is Tokyo."
    assert [m["step"] for m in metrics(job, "train")] == list(range(10, 101, 10))
    assert not (settings.HOME / "training" / job.id).exists()
    assert look(sync_client(), settings.ENV.host_id)["holders"] == []
    assert str(settings.HOME) not in json.dumps(job.result) + json.dumps(job.config)


def test_earlier_steps_stay_as_adapters_of_their_own(worker: Pulse) -> None:
    job = run_to_end(worker, order([CODE] * 12, epochs=4, batch_size=6, steps_per_save=5, learning_rate=1e-3))
    adapter = Adapter.objects.get(job=job.id)

    earlier = registry.checkpoints(adapter)
    assert [one.step for one in earlier] == [6, 4]  # the ends of the newest two passes; the result is the last step
    assert [one.name for one in earlier] == [f"{adapter.name}:ckpt-step-{step}" for step in (6, 4)]
    last = local_adapters.find_name(f"{adapter.name}:ckpt-step-8", settings.HOME)
    assert last is not None and last.id == adapter.id and last.step == 8
    weights = [load_file(one.path / "adapters.safetensors") for one in (earlier[1], earlier[0], last)]
    assert all((a[name] != b[name]).any() for a, b in pairwise(weights) for name in a if name.endswith("q_proj.lora_b"))
    assert not (settings.HOME / "training" / job.id).exists()

    registry.remove_checkpoint(earlier[0])
    assert local_adapters.find_name(earlier[0].name, settings.HOME) is None
    assert [one.step for one in registry.checkpoints(adapter)] == [4]
    registry.remove(adapter)
    assert local_adapters.names(settings.HOME) == []


def test_rows_that_the_template_refuses_end_the_run_with_that_reason(worker: Pulse) -> None:
    template = settings.HOME / "models" / "tiny" / "chat_template.jinja"
    template.write_text("{{ joiner.__init__.__globals__ }}")
    job = run_to_end(worker, order(iters=2))

    assert (job.state, job.error_code) == ("failed", "template_failed"), job.error


@pytest.mark.parametrize("damage", ["no-config", "no-weights", "no-keys", "wrong-shape"])
def test_an_incomplete_adapter_is_refused_loudly(worker: Pulse, damage: str) -> None:
    job = run_to_end(worker, order(iters=1))
    folder = settings.HOME / "adapters" / job.result["adapter"]
    config = json.loads((folder / "adapter_config.json").read_text())
    if damage == "no-config":
        (folder / "adapter_config.json").unlink()
    elif damage == "no-weights":
        (folder / "adapters.safetensors").unlink()
    elif damage == "no-keys":
        del config["lora_parameters"]
        (folder / "adapter_config.json").write_text(json.dumps(config))
    else:
        config["lora_parameters"]["rank"] = 4
        (folder / "adapter_config.json").write_text(json.dumps(config))

    assert damage == "wrong-shape" or local_adapters.find(job.result["adapter"], settings.HOME) is None
    with pytest.raises(subprocess.CalledProcessError):
        answer_of(folder, "code?")


def test_a_run_killed_in_the_middle_goes_on_and_draws_the_same_curve(worker: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of_both = {
        "iters": 30,
        "steps_per_report": 1,
        "steps_per_save": 5,
        "steps_per_eval": 10,
        "lora_dropout": 0.1,
        "batch_size": 3,
        "lr_schedule": "cosine",
        "warmup_iters": 3,
        "seed": 7,
    }
    straight = run_to_end(worker, order(valid=[CODE], **settings_of_both))
    assert straight.state == "done", straight.error
    broken = order(valid=[CODE], **settings_of_both)
    forward, killed = trainer_child.Run._forward, []

    def kill_at_step_17(run: trainer_child.Run, event: dict[str, Any]) -> None:
        at = event.get("step")
        forward(run, event)
        if at == 17 and not killed:
            children = subprocess.run(["pgrep", "-f", "workers.trainer.main"], capture_output=True, text=True).stdout.split()
            killed.extend(int(pid) for pid in children if _parent(int(pid)) == os.getpid())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(trainer_child.Run, "_forward", kill_at_step_17)
    run_to_end(worker, broken)
    assert broken.state == "queued" and len(killed) == 1, broken.error
    Job.objects.filter(pk=broken.id).update(due_at=broken.created_at)

    broken = run_to_end(worker, broken)

    assert broken.state == "done", broken.error
    assert "resumed" in stages(broken)
    for kind in ("train", "val"):
        expected, got = curve_of(straight)[kind], curve_of(broken)[kind]
        assert [point["step"] for point in got] == [point["step"] for point in expected]
        assert [point["loss"] for point in got] == pytest.approx([point["loss"] for point in expected], rel=TOLERANCE)
    assert [p["learning_rate"] for p in curve_of(broken)["train"]] == [p["learning_rate"] for p in curve_of(straight)["train"]]
    assert broken.result["trained_tokens"] == straight.result["trained_tokens"]
    expected_steps, found_steps = (registry.checkpoints(Adapter.objects.get(job=job.id)) for job in (straight, broken))
    assert [one.step for one in found_steps] == [one.step for one in expected_steps] == [25, 20]
    for one, other in zip(found_steps, expected_steps, strict=True):
        mine, theirs = (load_file(which.path / "adapters.safetensors") for which in (one, other))
        assert all(np.allclose(mine[name], theirs[name], rtol=TOLERANCE, atol=1e-6) for name in theirs)
    folder = settings.HOME / "adapters" / broken.result["adapter"]
    written = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in written if line["kind"] == "train"] == list(range(1, 31))


def test_pause_keeps_the_place_and_resume_goes_on_there(worker: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    job = order(iters=400, steps_per_report=1, steps_per_save=1000)
    forward, asked = trainer_child.Run._forward, []

    def pause_at_step_4(run: trainer_child.Run, event: dict[str, Any]) -> None:
        at = event.get("step")
        forward(run, event)
        if at == 4 and not asked:
            asked.append(at)
            service.pause(job.id, "test")

    monkeypatch.setattr(trainer_child.Run, "_forward", pause_at_step_4)
    job = run_to_end(worker, job)
    if job.state == "done":
        pytest.fail("four hundred steps were over before the pause was seen")
    assert job.state == "paused"
    service.resume(job.id, "test")

    job = run_to_end(worker, job)

    assert job.state == "done", job.error
    assert [point["step"] for point in curve_of(job)["train"]] == list(range(1, 401))
    assert len(metrics(job, "train")) == 400  # a pause writes a checkpoint: no step is done twice


def test_finish_publishes_what_there_is(worker: Pulse) -> None:
    job = order(iters=5_000_000)
    thread = start(worker)
    wait_until(lambda: metrics(job, "train"))
    TrainingRun.objects.filter(pk=job.id).update(finish=True)
    thread.join()

    job.refresh_from_db()
    assert job.state == "done", job.error
    assert job.result["outcome"] == "finish"
    assert 0 < job.result["steps"] < job.result["planned_steps"]
    assert local_adapters.find(job.result["adapter"], settings.HOME) is not None


def test_cancel_stops_within_steps_and_leaves_nothing(worker: Pulse) -> None:
    job = order(iters=5_000_000, steps_per_save=1)
    thread = start(worker)
    wait_until(lambda: metrics(job, "train"))
    service.cancel(job.id, "test")
    service.cancel(job.id, "test")
    thread.join()

    job.refresh_from_db()
    assert job.state == "cancelled"
    assert not (settings.HOME / "training" / job.id).exists()
    assert local_adapters.scan(settings.HOME) == []
    assert look(sync_client(), settings.ENV.host_id)["holders"] == []


def test_rows_whose_prompt_fills_the_window_are_counted_and_never_make_the_loss_nan(worker: Pulse) -> None:
    long = {"prompt": "word " * 200, "completion": "yes"}
    job = run_to_end(worker, order([CODE] * 7 + [long] * 3, iters=10, max_seq_length=64))

    assert job.state == "done", job.error
    described = metrics(job, "dataset")[0]
    assert (described["rows_used"], described["rows_skipped"]) == (7, {"no_trainable_tokens": 3})
    assert "skipped 3 rows" in logs(job)
    assert all(point["loss"] == point["loss"] for point in curve_of(job)["train"])


def test_nothing_trainable_is_explained(worker: Pulse) -> None:
    job = run_to_end(worker, order([{"prompt": "word " * 200, "completion": "yes"}] * 3, max_seq_length=64))

    assert (job.state, job.error_code) == ("failed", "no_trainable_rows")


@pytest.mark.parametrize(("count", "valid"), [(1, 0), (2, 0), (5, 0), (9, 0), (10, 1)])
def test_a_validation_share_of_few_rows_is_nothing_rather_than_a_copy(worker: Pulse, count: int, valid: int) -> None:
    rows = [{"prompt": f"What is {n}?", "completion": str(n)} for n in range(count)]
    job = run_to_end(worker, order(rows, iters=1, valid_fraction=0.1))

    assert job.state == "done", job.error
    assert job.result["dataset"]["train"]["rows_used"] == count - valid
    assert job.result["validation"] == bool(valid)
    assert bool(valid) or "no validation set" in logs(job)


def test_a_loss_that_is_no_number_stops_the_run_with_the_step_named(worker: Pulse) -> None:
    file = settings.HOME / "models" / "tiny" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, str(file), metadata={"format": "mlx"})

    job = run_to_end(worker, order(iters=20))

    assert (job.state, job.error_code, job.error) == ("failed", "loss_not_finite", "The loss became NaN at step 1.")
    assert local_adapters.scan(settings.HOME) == []


def test_early_stopping_keeps_the_best_weights(worker: Pulse) -> None:
    valid = [{"prompt": "What is the capital of Peru?", "completion": "ZX-81"}]
    job = run_to_end(worker, order(valid=valid, iters=500, steps_per_eval=2, early_stop_patience=2, learning_rate=0.01))

    assert job.state == "done", job.error
    losses = {point["step"]: point["loss"] for point in job.result["trajectory"]}
    assert job.result["outcome"] == "early_stop" and job.result["kept"] == "best"
    assert job.result["best"]["loss"] == min(losses.values())
    assert job.result["steps"] < 500


def test_a_full_fine_tune_becomes_a_model_of_the_library(worker: Pulse) -> None:
    job = run_to_end(worker, order([CODE] * 4, fine_tune_type="full", output="mine", iters=60, learning_rate=0.002))

    assert job.state == "done", job.error
    model = local_models.find("mine", settings.HOME)
    assert model is not None and model.dtype == "float32" and model.chat_template
    assert job.result["model"] == "mine" and job.result["adapter"] is None


@pytest.mark.parametrize("method", ["dpo", "orpo"])
def test_preferences_are_learned(worker: Pulse, method: str) -> None:
    rows = [{"prompt": "code?", "chosen": "ZX-81", "rejected": "Paris"}] * 8
    job = run_to_end(worker, order(rows, valid=rows[:1], method=method, iters=30, learning_rate=0.001, batch_size=2))

    assert job.state == "done", job.error
    first, last = curve_of(job)["train"][0], curve_of(job)["train"][-1]
    assert last["margin"] > first["margin"] and last["accuracy"] == 1.0
    assert curve_of(job)["val"][-1]["accuracy"] == 1.0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_layers_of_fewer_bits_get_smaller_adapters_that_mlx_lm_reads(worker: Pulse) -> None:
    made = quantization.check({"model": "tiny", "target_bpw": 6.5, "output": "mixed", "report": False})
    quantized = run_to_end(worker, quantization.submit(made, project="default", created_by="test"))
    assert quantized.state == "done", quantized.error
    bits = quantized.result["mixed"]["bits"]

    job = run_to_end(worker, order([CODE] * 8, model="mixed", rank=4, rank_scaling="by_bits", iters=60, lora_plus_ratio=2.0))

    assert job.state == "done", job.error
    ranks = job.result["applied_ranks"]
    assert {bits[name]: rank for name, rank in ranks.items()} == {4: 4, 8: 8}
    folder = settings.HOME / "adapters" / job.result["adapter"]
    config, weights = json.loads((folder / "adapter_config.json").read_text()), load_file(folder / "adapters.safetensors")
    assert config["lora_parameters"]["rank"] == 8 and config["applied_ranks"] == ranks and "ranks" not in config
    small = next(name for name, rank in ranks.items() if rank == 4)
    assert weights[f"{small}.lora_a"].shape[1] == 8 and not weights[f"{small}.lora_a"][:, 4:].any()
    shutil.rmtree(settings.HOME / "models" / "tiny")
    (settings.HOME / "models" / "mixed").rename(settings.HOME / "models" / "tiny")
    assert answer_of(folder, "code?") == "ZX-81"


def test_a_run_starts_from_another_adapters_weights(worker: Pulse) -> None:
    first = run_to_end(worker, order([CODE] * 8, iters=60, steps_per_report=1))
    name = first.result["name"]

    second = run_to_end(worker, order([CODE] * 8, iters=5, steps_per_report=1, warm_start_adapter=name))

    assert second.state == "done", second.error
    begun, ended = curve_of(second)["train"][0]["loss"], curve_of(first)["train"][-1]["loss"]
    assert begun == pytest.approx(ended, rel=0.05) and begun < curve_of(first)["train"][0]["loss"] / 2
    for fields, param in (
        ({"rank": 4}, "rank"),
        ({"scale": 10.0}, "scale"),
        ({"rs_lora": True}, "rs_lora"),
        ({"fine_tune_type": "dora"}, "fine_tune_type"),
        ({"warm_start_adapter": "ad_nothing"}, "warm_start_adapter"),
    ):
        with pytest.raises(Refusal) as refused:
            order(**{"warm_start_adapter": name, **fields})
        assert refused.value.param == param


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("by_bits", {"a": 4, "b": 8, "c": 8, "d": 2}),
        ("by_kl", {"a": 8, "b": 16, "c": 4, "d": 8}),
    ],
)
def test_ranks_follow_what_the_bases_files_say(tmp_path: Path, kind: str, expected: dict[str, int]) -> None:
    packed = {"bits": 2, "group_size": 64, "b": {"bits": 4}, "c": False, "d": {"bits": 1}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization": packed}))
    (tmp_path / "quantization_report.json").write_text(json.dumps({"mixed": {"kl": {"a": 0.2, "b": 9.0, "c": 0.01}}}))

    assert ranks.chosen(kind, 8, list("abcd"), tmp_path) == (expected, "")


def test_without_measured_sensitivities_ranks_follow_bits_and_the_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    found, note = ranks.chosen("by_kl", 8, ["a"], tmp_path)

    assert found == {"a": 8} and "no measured" in note
