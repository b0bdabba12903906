"""Orders to quantize: defaults filled in, impossible ones refused by field before a job exists."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.library import local_models, names
from mlxplatform.training import quantization
from tests.fixtures import tiny_model

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module", autouse=True)
def model() -> str:
    tiny_model.install(settings.HOME, "tiny-quant")
    return "tiny-quant"


def check(**fields: Any) -> dict[str, Any]:
    return quantization.check({"model": "tiny-quant", **fields})


@pytest.mark.parametrize(
    ("fields", "scheme", "output"),
    [
        ({}, ("affine", 4, 64), "tiny-quant-4bit"),
        ({"bits": None, "group_size": None, "mode": None}, ("affine", 4, 64), "tiny-quant-4bit"),
        ({"bits": 8, "group_size": 32}, ("affine", 8, 32), "tiny-quant-8bit-g32"),
        ({"bits": 3.0}, ("affine", 3, 64), "tiny-quant-3bit"),
        ({"mode": "mxfp4"}, ("mxfp4", 4, 32), "tiny-quant-mxfp4"),
        ({"mode": "nvfp4"}, ("nvfp4", 4, 16), "tiny-quant-nvfp4"),
        ({"mode": "mxfp8"}, ("mxfp8", 8, 32), "tiny-quant-mxfp8"),
        ({"recipe": "mixed_3_6"}, ("affine", 3, 64), "tiny-quant-mixed-3-6"),
        ({"target_bpw": 5.5}, ("affine", 4, 64), "tiny-quant-mixed-5.5bpw"),
        ({"target_bpw": 4, "candidate_bits": [8, 3]}, ("affine", 3, 64), "tiny-quant-mixed-4bpw"),
        ({"method": "awq", "bits": 3}, ("affine", 3, 64), "tiny-quant-awq-3bit"),
        ({"method": "dwq"}, ("affine", 4, 64), "tiny-quant-dwq-4bit"),
        ({"method": "dynamic", "target_bpw": 5}, ("affine", 4, 64), "tiny-quant-dynamic-5bpw"),
        ({"output": "models/mine"}, ("affine", 4, 64), "mine"),
        ({"out_dir": "somebody/mine"}, ("affine", 4, 64), "somebody/mine"),
    ],
)
def test_defaults_follow_the_mode(fields: dict[str, Any], scheme: tuple[str, int, int], output: str) -> None:
    order = check(**fields)

    assert (order["mode"], order["bits"], order["group_size"]) == scheme
    assert order["output"] == output
    assert order["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"mode": "mxfp4", "group_size": 64}, "group_size"),
        ({"mode": "mxfp8", "bits": 4}, "bits"),
        ({"bits": 7}, "bits"),
        ({"bits": 0}, "bits"),
        ({"bits": "4"}, "bits"),
        ({"bits": 10**400}, "bits"),
        ({"target_bpw": 10**400}, "target_bpw"),
        ({"target_bpw": float("nan")}, "target_bpw"),
        ({"candidate_bits": [4, 10**400], "target_bpw": 5}, "candidate_bits"),
        ({"bits": True}, "bits"),
        ({"bits": 4.5}, "bits"),
        ({"group_size": 33}, "group_size"),
        ({"mode": "int4"}, "mode"),
        ({"recipe": "mixed_3_6", "mode": "mxfp4"}, "recipe"),
        ({"recipe": "mixed_3_6", "bits": 4}, "bits"),
        ({"dtype": "int8"}, "dtype"),
        ({"target_bpw": 9}, "target_bpw"),
        ({"target_bpw": 5, "bits": 4}, "bits"),
        ({"target_bpw": 5, "recipe": "mixed_3_6"}, "recipe"),
        ({"target_bpw": 5, "mode": "mxfp4"}, "target_bpw"),
        ({"target_bpw": 5, "candidate_bits": [4]}, "candidate_bits"),
        ({"target_bpw": 5, "candidate_bits": [4, 7]}, "candidate_bits"),
        ({"candidate_bits": [4, 8]}, "candidate_bits"),
        ({"method": "hqq"}, "method"),
        ({"method": "gptq", "bits": 3}, "bits"),
        ({"method": "dwq", "bits": 8}, "bits"),
        ({"method": "awq", "mode": "mxfp4"}, "mode"),
        ({"method": "awq", "recipe": "mixed_3_6"}, "recipe"),
        ({"method": "gptq", "target_bpw": 5}, "target_bpw"),
        ({"method": "dynamic"}, "target_bpw"),
        ({"method": "dynamic", "target_bpw": 5, "candidate_bits": [3, 4, 8]}, "candidate_bits"),
        ({"report": "yes"}, "report"),
        ({"output": "../x"}, "output"),
        ({"output": "/x"}, "output"),
        ({"output": ""}, "output"),
        ({"output": "a/b/c"}, "output"),
        ({"surprise": 1}, "surprise"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
    ],
)
def test_impossible_orders_are_refused_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        check(**fields)

    assert (refused.value.status, refused.value.param) == (400, field)
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    "name", ["../../etc", "/etc", "./x", "~", "file:///etc", "https://127.0.0.1/x", "models/../../x", "nothing"]
)
def test_models_that_are_not_here_get_one_answer_whether_a_path_exists_or_not(name: str) -> None:
    with pytest.raises(Refusal) as refused:
        check(model=name)

    assert (refused.value.status, refused.value.code) == (404, "model_not_found")


def test_a_model_without_a_tokenizer_is_refused_by_name() -> None:
    (tiny_model.install(settings.HOME, "tiny-mute") / "tokenizer.json").unlink()
    mute = local_models.find("tiny-mute", settings.HOME)
    assert mute is not None and mute.obstacle == "it has no tokenizer.json"
    with pytest.raises(Refusal) as refused:
        quantization.check({"model": "tiny-mute"})
    assert (refused.value.param, refused.value.status) == ("model", 400)


def test_a_taken_name_is_refused_before_work() -> None:
    with pytest.raises(Refusal) as refused:
        check(output="tiny-quant")

    assert (refused.value.status, refused.value.code, refused.value.param) == (409, "name_taken", "output")


def test_of_two_orders_for_one_name_exactly_one_becomes_a_job() -> None:
    first = quantization.submit(check(output="wanted"), project="default", created_by="a")

    with pytest.raises(Refusal) as refused:
        quantization.submit(check(output="wanted"), project="default", created_by="b")

    assert (refused.value.status, refused.value.param) == (409, "output")
    assert list(Job.objects.values_list("id", flat=True)) == [first.id]
    names.job_ended(first)
    assert quantization.submit(check(output="wanted"), project="default", created_by="b")


def test_methods_know_what_mlx_lms_do() -> None:
    source = Path(importlib.util.find_spec("mlx_lm").submodule_search_locations[0]) / "quant" / "awq.py"  # type: ignore[union-attr, index]
    table = source.read_text().split("AWQ_MODEL_CONFIGS = {")[1].split("}")[0]
    assert set(re.findall(r'^ +"(\w+)":', table, re.M)) == quantization.AWQ_ARCHITECTURES


def test_an_architecture_awq_does_not_know_is_501_and_named() -> None:
    folder = tiny_model.install(settings.HOME, "tiny-other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "olmo2"}))

    with pytest.raises(Refusal) as refused:
        quantization.check({"model": "tiny-other", "method": "awq"})

    assert (refused.value.status, refused.value.param) == (501, "method")
    assert "olmo2" in refused.value.message and "llama" in refused.value.message
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["TINY-quant", "Tiny-Quant", "owner/Small", "OWNER/small", "tiny-quant/inner"])
def test_names_are_told_apart_by_more_than_their_case(name: str) -> None:
    """On most Macs they would be one directory."""
    tiny_model.install(settings.HOME, "owner/small")

    with pytest.raises(Refusal) as refused:
        check(output=name)

    assert (refused.value.status, refused.value.param) == (409, "output")


def test_two_jobs_never_work_for_names_that_differ_in_case_only() -> None:
    quantization.submit(check(output="Made-Here"), project="default", created_by="test")

    with pytest.raises(Refusal) as refused:
        quantization.submit(check(output="made-here"), project="default", created_by="test")

    assert refused.value.status == 409 and Job.objects.count() == 1
