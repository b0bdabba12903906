"""Routes of quantizing and fine-tuning."""

from django.urls import path

from mlxplatform.http.views import endpoint
from mlxplatform.training import finetune_views, views
from mlxplatform.training.openai import views as openai

_JOB = "v1/fine_tuning/jobs/<str:job_id>"

urlpatterns = [
    path("api/quantize/inspect", endpoint(POST=views.quantize_inspect)),
    path("api/quantize/submit", endpoint(POST=views.quantize_submit)),
    path("api/quantize/reports", endpoint(GET=views.quantize_reports)),
    path("api/quantize/reports/<str:job_id>", endpoint(GET=views.quantize_report)),
    path("api/finetune/fields", endpoint(GET=finetune_views.fields)),
    path("api/finetune/inspect-dataset", endpoint(POST=finetune_views.inspect_dataset)),
    path("api/finetune/submit", endpoint(POST=finetune_views.submit)),
    path("api/finetune/fuse", endpoint(POST=finetune_views.fuse)),
    path("api/finetune/merge", endpoint(POST=finetune_views.merge)),
    path("api/finetune/export", endpoint(POST=finetune_views.export)),
    path("api/finetune/evaluate", endpoint(POST=finetune_views.evaluate)),
    path("api/finetune/<str:job_id>/finish", endpoint(POST=finetune_views.finish)),
    path("api/finetune/<str:job_id>/curve", endpoint(GET=finetune_views.curve)),
    path("v1/fine_tuning/jobs", endpoint(GET=openai.jobs, POST=openai.create)),
    path(_JOB, endpoint(GET=openai.retrieve)),
    *(path(f"{_JOB}/{action}", endpoint(POST=openai.act), {"action": action}) for action in ("cancel", "pause", "resume")),
    path(f"{_JOB}/events", endpoint(GET=openai.events)),
    path(f"{_JOB}/checkpoints", endpoint(GET=openai.checkpoints)),
    path("api/comparisons", endpoint(GET=finetune_views.comparisons, POST=finetune_views.vote)),
    path("api/adapters", endpoint(GET=finetune_views.adapters)),
    path("api/adapters/<path:adapter_id>", endpoint(GET=finetune_views.adapter_detail, DELETE=finetune_views.adapter_delete)),
]
