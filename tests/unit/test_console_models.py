"""Pages about models: what a finished job came to, what forms offer and send, and checkpoints that are gone."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.messages import get_messages
from django.http import QueryDict
from django.test import Client

from mlxplatform.console import training_data
from mlxplatform.console.forms import Choice, body_of, inputs_for
from mlxplatform.console.outcomes import outcome
from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.files import service as files
from mlxplatform.jobs.models import Job
from mlxplatform.training import finetuning, quantization
from mlxplatform.training.models import Adapter, QualityReport
from tests.fixtures import tiny_model

pytestmark = pytest.mark.django_db(transaction=True)

TUNED = {"adapter": "ad_1-step-40", "name": "ft:tiny:local::1:ckpt-step-40"}
RESULTS = [
    (
        "quantize",
        {"model": "q", "bytes": 25, "baseline_bytes": 100, "quality": {"same_top": 0.9}},
        ("25 B, 25 % of 100 B", "90 %"),
    ),
    ("finetune", {"name": "ft:x", "steps": 5, "planned_steps": 9, "outcome": "finish"}, ("ft:x", "5 of 9, stopped by a person")),
    ("finetune", {"best": {"loss": 0.5, "step": 3}, "kept": "best", "kept_step": 3}, ("step 3, the best", "0.5000 at step 3")),
    ("merge_adapters", {"name": "ft:y", "rank": 16}, ("ft:y", "16")),
    ("fuse", {"model": "fused", "layers": 14, "bytes": 2048}, ("fused", "14", "2.0 KB")),
    ("export_adapter", {"files": [{"filename": "a.gguf", "bytes": 1, "url": "/v1/files/f/content"}]}, ("1 B",)),
    ("evaluate_adapter", {**TUNED, "loss": {"base": {"loss": 2.0}, "tuned": {"loss": 1.5}}}, ("2.0000 → 1.5000",)),
    ("evaluate_adapter", {**TUNED, "exact_match": {"base": 0.0, "tuned": 0.5}}, ("0 % → 50 %",)),
]


@pytest.mark.parametrize(("kind", "result", "told"), RESULTS)
def test_a_finished_job_says_what_it_made(kind: str, result: dict[str, object], told: tuple[str, ...]) -> None:
    found = outcome(Job(id="job_1", kind=kind, state="done", result=result))

    assert found is not None
    texts = [fact.text.replace("\u00a0", " ") for fact in found.facts]
    assert set(told) <= set(texts), texts
    assert all(texts) and "None" not in " ".join(texts)
    assert (found.page is not None) == (kind in {"quantize", "finetune", "merge_adapters", "evaluate_adapter"})


def test_results_without_figures_and_jobs_that_made_nothing_are_told_too() -> None:
    for kind in {kind for kind, _, _ in RESULTS}:
        assert outcome(Job(id="job_1", kind=kind, state="done", result={})) is not None
        assert outcome(Job(id="job_1", kind=kind, state="failed", result=None)) is None
    assert outcome(Job(id="job_1", kind="export", state="done", result={"rows": 5})) is None


def test_a_form_sends_lists_and_what_it_was_filled_with() -> None:
    sent = QueryDict("target_modules=q_proj,+v_proj&iters=x&suffix=a+b")
    body = body_of(sent, finetuning.FIELDS)
    assert (body["target_modules"], body["iters"], body["suffix"]) == (["q_proj", "v_proj"], "x", "a b")
    assert body_of(QueryDict("candidate_bits=4+8"), quantization.FIELDS)["candidate_bits"] == [4, 8]

    field = next(field for field in finetuning.FIELDS if field.name == "dataset")
    (select,) = inputs_for([field], QueryDict("dataset=ds_z"), choices={"dataset": [Choice("ds_a@1", "first")]})
    assert (select.kind, select.value) == ("select", "ds_z")
    assert select.choices == [Choice("ds_z", "ds_z"), Choice("ds_a@1", "first")]


def test_data_is_called_by_its_name() -> None:
    versions = []
    for number in (1, 2, 3):
        dataset = Dataset.objects.create(id=f"ds_{number:06d}", name="codes" if number < 3 else "other", template="import")
        counted = {"train.jsonl": {"rows": 9}, "valid.jsonl": {"rows": number - 1}}
        versions.append(DatasetVersion.objects.create(dataset=dataset, number=4, output_format="chat", files=counted))
    file = files.store([b"{}\n"], "rows.jsonl", "fine-tune").id

    offered = training_data.choices(versions)

    assert [choice.label for choice in offered] == [
        "codes (…000001), version 4: 9 rows to learn",
        "codes (…000002), version 4: 9 rows to learn, 1 to validate",
        "other, version 4: 9 rows to learn, 2 to validate",
    ]
    assert training_data.chosen("ds_000002", offered) == "ds_000002@4" == training_data.chosen("ds_000002@4", offered)
    assert training_data.chosen("ds_gone", offered) == "ds_gone" and training_data.chosen("", offered) == ""
    sources = [{"dataset": "ds_000001", "version": 4}, {"dataset": "ds_gone", "version": 1}]
    sources += [{"training_file": file}, {"training_file": "file-gone"}]
    assert training_data.names(sources) == ["codes, version 4", "ds_gone, version 1", "rows.jsonl", "file-gone"]


def test_a_checkpoint_that_is_gone_is_not_taken_for_the_last_step() -> None:
    tiny_model.install(settings.HOME, "tiny-order")
    made = {"base_model": "tiny-order", "base_revision": "r", "method": "sft", "fine_tune_type": "lora"}
    adapter = Adapter.objects.create(id="ad_pages", name="ft:tiny-order:local::pages", **made)
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))

    answer = client.post(f"/console/models/adapters/{adapter.id}/action", {"action": "export", "step": f"{adapter.id}-step-5"})

    assert answer.status_code == 302 and answer.headers["Location"].endswith(f"/console/models/adapters/{adapter.id}")
    assert [str(message) for message in get_messages(answer.wsgi_request)] == ["That checkpoint is not there any more."]
    assert not Job.objects.exists()


def test_runs_whose_order_does_not_say_what_on_are_offered_all_the_same() -> None:
    Job.objects.create(id="job_old", kind="finetune", queue="gpujobs.local", config={})
    get_user_model().objects.create_superuser("old", password="a long password")
    client = Client(headers={"host": "localhost"})
    client.login(username="old", password="a long password")
    for path in ("/console/models/runs", "/console/models/runs?job=job_old", "/v1/fine_tuning/jobs"):
        answer = client.get(path)
        assert answer.status_code == 200 and (b"job_old" in answer.content or b"ftjob-old" in answer.content)


#: What people and programs put into addresses.
_ODD = (
    "",
    "%00",
    "..%2f..%2fetc",
    "%F0%9F%90%88",
    "a" * 3000,
    "-1",
    "1e9",
    "NaN",
    "null",
    "%D9%A1",
    "[]",
    "x&x",
    "%ff",
    "%ED%A0%80",
)
_PAGES = {
    "/console/models": ("q", "page"),
    "/console/models/quantize": ("model", "bits", "candidate_bits", "report"),
    "/console/models/finetune": ("model", "dataset", "iters", "target_modules", "do"),
    "/console/models/one": ("model",),
    "/console/models/hub": (),
    "/console/models/reports": ("baseline",),
    "/console/models/runs": ("job",),
    "/library": ("x",),
    "/fit": ("model", "context"),
    "/downloads": ("x",),
    "/api/adapters": ("base_model", "method", "job"),
    "/api/quantize/reports": ("baseline",),
    "/api/comparisons": ("model",),
    "/api/hub/search": (),
    "/api/gc/plan": ("x",),
    "/api/hub/foreign": ("x",),
    "/api/presets/fields": ("x",),
    "/v1/fine_tuning/jobs": ("after", "limit", "metadata", "metadata[x]"),
    "/admin/training/adapter/": ("q", "o", "p", "method", "e"),
    "/admin/training/qualityreport/": ("q", "o", "p", "e"),
    "/admin/training/trainingrun/": ("q", "o"),
    "/admin/library/modelchoice/": ("q", "o"),
}
_BELOW = ("/console/models/reports/", "/console/models/adapters/", "/api/adapters/", "/api/quantize/reports/", "/api/library/")


@pytest.mark.drill  # three hundred pages
@pytest.mark.usefixtures("broker")
def test_nothing_in_an_address_breaks_a_page() -> None:
    for report_id, figures in (
        ("job_r1", {}),
        ("job_r2", {"quality": None, "mixed": None, "bytes": 5}),
        ("job_r3", {"quality": {}}),
    ):
        report = {"model": "q", "baseline": "b", "baseline_revision": "r", "bytes": 5, "bits_per_weight": 4.5}
        QualityReport.objects.create(job=report_id, figures=figures, kl_mean=None if figures else 0.0, **report)
    made = {"base_model": "gone", "base_revision": "r", "method": "merge", "fine_tune_type": "lora"}
    Adapter.objects.create(id="ad_merged", name="ft:gone:local:m:1", **made)
    Adapter.objects.create(id="ad_full", name="ft:gone:local:f:1", model="full", **made, metrics={"evaluation": {"loss": {}}})
    Job.objects.create(id="job_odd", kind="finetune", queue="gpujobs.local", config={}, state="failed")
    get_user_model().objects.create_superuser("odd", password="a long password")
    client = Client(headers={"host": "localhost"}, raise_request_exception=False)
    client.login(username="odd", password="a long password")
    tried = [f"{path}?{name}={value}" for path, names in _PAGES.items() for name in names for value in _ODD]
    tried += [f"{path}{value}" for path in _BELOW for value in _ODD] + list(_PAGES)
    tried += [f"/console/models/reports/job_r{n}" for n in (1, 2, 3)] + ["/console/models/reports?baseline=b"]
    tried += [f"{path}{name}" for name in ("ad_merged", "ad_full") for path in ("/console/models/adapters/", "/api/adapters/")]
    tried += ["/console/models/runs?job=job_odd&job=job_odd&job=x", "/api/finetune/job_odd/curve", "/console/jobs/job_odd"]

    answers = {path: client.get(path).status_code for path in tried}

    assert {path[:120]: status for path, status in answers.items() if status >= 500} == {}
