"""Routes of the console: pages for people, at the root and under /console."""

from django.templatetags.static import static
from django.urls import path
from django.views.generic import RedirectView

from mlxplatform.console.views import (
    accounts,
    conversations,
    dataset_transfer,
    datasets,
    files,
    home,
    house,
    jobs,
    memory,
    memory_settings,
    models,
    schedules,
    signin,
)

app_name = "console"

urlpatterns = [
    path("favicon.ico", RedirectView.as_view(url=static("console/icon.svg"))),
    path("", home.home, name="home"),
    path("login/", signin.sign_in, name="sign-in"),
    path("logout/", signin.sign_out, name="sign-out"),
    path("console/password", signin.password, name="password"),
    path("console/chat", home.chat, name="chat"),
    path("console/conversations", conversations.conversation_list, name="conversations"),
    path("console/conversations/<str:conversation_id>", conversations.conversation, name="conversation"),
    path("console/jobs", jobs.job_list, name="jobs"),
    path("console/jobs/action", jobs.job_action, name="job-action"),
    path("console/jobs/<str:job_id>", jobs.job_detail, name="job"),
    path("console/datasets", datasets.dataset_list, name="datasets"),
    path("console/datasets/previews/<str:job_id>", datasets.dataset_preview, name="dataset-preview"),
    path("console/datasets/new", datasets.dataset_new, name="dataset-new"),
    path("console/datasets/import", dataset_transfer.dataset_import, name="dataset-import"),
    path("console/datasets/<str:dataset_id>/push", dataset_transfer.dataset_push, name="dataset-push"),
    path("console/datasets/<str:dataset_id>", datasets.dataset_detail, name="dataset"),
    path("console/batches", files.batch_list, name="batches"),
    path("console/batches/cancel", files.batch_cancel, name="batch-cancel"),
    path("console/files", files.file_list, name="files"),
    path("console/files/delete", files.file_delete, name="file-delete"),
    path("console/models", models.library, name="models"),
    path("console/models/quantize", models.quantize, name="quantize"),
    path("console/memory", memory.overview, name="memory"),
    path("console/memory/settings/<int:vault>", memory_settings.settings, name="memory-settings"),
    path("console/memory/action", memory.action, name="memory-action"),
    path("console/memory/changes/<str:change_id>", memory.change, name="memory-change"),
    path("console/memory/changes/<str:change_id>/action", memory.change_action, name="memory-change-action"),
    path("console/memory/runs/<str:run_id>", memory.run, name="memory-run"),
    path("console/memory/pages/<int:vault>/<str:name>", memory.article, name="memory-page"),
    path("console/models/finetune", models.finetune, name="finetune"),
    path("console/schedules", schedules.schedule_list, name="schedules"),
    path("console/schedules/new", schedules.schedule_new, name="schedule-new"),
    path("console/schedules/action", schedules.schedule_action, name="schedule-action"),
    path("console/usage", accounts.usage, name="usage"),
    path("console/keys", accounts.key_list, name="keys"),
    path("console/keys/action", accounts.key_action, name="key-action"),
    path("console/data", house.overview, name="house"),
    path("console/data/erase", house.erase, name="erase"),
    path("console/people", accounts.people_list, name="people"),
    path("console/people/action", accounts.people_action, name="people-action"),
]
