"""Pushing a ready version to the hub: the order, checked, and the job that does it.

The version's own published files are sent, with its card; what the job keeps is where they went.
"""

from __future__ import annotations

import re
from typing import Any

from django.db import transaction

from mlxplatform.accounts import audit
from mlxplatform.datasets import hub, publish, rowsource
from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.models import DatasetVersion, HubToken
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.context import JobContext, JobFailed
from mlxplatform.jobs.models import Job

KIND = "dataset_push"
FIELDS = ("repo", "version", "private", "message", "idempotency_key")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
MAX_MESSAGE = 500


def submit(version: DatasetVersion, body: dict[str, Any], *, project: str, created_by: str, idempotency_key: str | None) -> Job:
    """Raises Refusal naming the field."""
    for name in body:
        if name not in FIELDS:
            raise Refusal(400, "unknown_field", f"{name} is not a field; the fields are {', '.join(FIELDS)}", param=name)
    repo = body.get("repo")
    if not isinstance(repo, str) or not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        raise bad("repo", "repo must be the name of a data set on the hub: owner/name, of letters, digits, - _ .")
    private = body.get("private", True)
    if not isinstance(private, bool):
        raise bad("private", "private must be true or false")
    message = body.get("message", f"Version {version.number} of {version.dataset_id}")
    if not isinstance(message, str) or not message.strip() or len(message) > MAX_MESSAGE:
        raise bad("message", f"message must be text of 1 to {MAX_MESSAGE} characters")
    if version.state != DatasetVersion.State.READY:
        raise Refusal(
            400, "not_ready", f"version {version.number} is {version.state}; only a ready one can be pushed", param="version"
        )
    if hub.forbidden_to_ask():
        raise Refusal(503, "offline", "This platform is set to stay offline (HF_HUB_OFFLINE), so nothing can be pushed.")
    if not HubToken.objects.filter(project=project).exists():
        raise Refusal(400, "no_token", "there is no hub token; set one with PUT /api/hub/token", param="repo")
    config = {
        "dataset": version.dataset_id,
        "version": version.number,
        "repo": repo,
        "private": private,
        "message": message.strip(),
    }
    with transaction.atomic():
        job = service.submit(KIND, config, project=project, created_by=created_by, idempotency_key=idempotency_key)
        audit.record(created_by, "dataset.push", version.dataset_id, project=project, after={"repo": repo, "job": job.id})
    return job


def run(ctx: JobContext) -> dict[str, Any]:
    """Runner of the kind ``dataset_push``."""
    config = ctx.config
    version = DatasetVersion.objects.get(dataset=config["dataset"], number=config["version"])
    names = [name for name in version.files if name != rowsource.INDEX]
    files = [(name, publish.path_of(version.location, name)) for name in names]
    ctx.stage("starting", 0.05, f"pushing version {version.number} to {config['repo']}")

    def step(message: str) -> None:
        ctx.check()
        ctx.stage("pushing", 0.2, message)

    try:
        url = hub.push(
            config["repo"], files, project=ctx.project, private=config["private"], message=config["message"], step=step
        )
    except hub.HubError as error:
        raise JobFailed(error.code, error.message) from None
    with transaction.atomic():
        version = DatasetVersion.objects.select_for_update().get(pk=version.pk)
        pushed = [entry for entry in version.report.get("pushed", []) if entry["url"] != url]
        version.report = {**version.report, "pushed": [*pushed, {"repo": config["repo"], "url": url, "job": ctx.job_id}]}
        version.save(update_fields=["report"])
    ctx.stage("done", 1.0, f"pushed to {config['repo']}")
    return {"dataset_id": version.dataset_id, "version": version.number, "repo": config["repo"], "url": url, "files": names}
