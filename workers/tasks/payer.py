"""Who pays for rows: the key, or nobody in particular, that ordered the job they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from mlxplatform.accounts import quotas, usage
from mlxplatform.accounts.actors import key_of
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.jobs.models import Job
from mlxplatform.rows.contract import Output

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Payer:
    """``key_id`` "": a person, or a machine without keys."""

    project: str = ""
    key_id: str = ""

    @classmethod
    def of(cls, job_id: str) -> Payer:
        job = Job.objects.filter(pk=job_id).values_list("project", "created_by").first()
        return cls(job[0], key_of(job[1])) if job is not None else cls()

    def count(self, outputs: Sequence[Output]) -> None:
        """Add committed answers to the ledger and to what the key has used up today. Loses a count rather than a row."""
        if not self.project:
            return
        for output in outputs:
            usage.add(self.project, self.key_id, output.model, output.usage)
        tokens = sum(output.usage.prompt + output.usage.completion for output in outputs)
        if self.key_id and tokens:
            try:
                quotas.spend_now(self.key_id, tokens)
            except BROKER_ERRORS as error:
                log.warning("quota_not_counted", key=self.key_id, error=type(error).__name__)
