"""Routes of the console: pages for people, at the root and under /console."""

from django.urls import path

from mlxplatform.console.views import accounts, datasets, home, jobs

app_name = "console"

urlpatterns = [
    path("", home.home, name="home"),
    path("console/chat", home.chat, name="chat"),
    path("console/jobs", jobs.job_list, name="jobs"),
    path("console/jobs/action", jobs.job_action, name="job-action"),
    path("console/jobs/<str:job_id>", jobs.job_detail, name="job"),
    path("console/datasets", datasets.dataset_list, name="datasets"),
    path("console/datasets/new", datasets.dataset_new, name="dataset-new"),
    path("console/datasets/<str:dataset_id>", datasets.dataset_detail, name="dataset"),
    path("console/usage", accounts.usage, name="usage"),
    path("console/keys", accounts.key_list, name="keys"),
    path("console/keys/action", accounts.key_action, name="key-action"),
]
