"""The jobs as a Django app: when the web process leaves, the pages that follow a job are sent to the next one."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "mlxplatform.jobs"
    label = "jobs"

    def ready(self) -> None:
        from mlxplatform.http import leaving

        leaving.add(_send_readers_away)


async def _send_readers_away() -> None:
    from mlxplatform.jobs import feed  # here, since only the web process follows jobs

    await feed.leave()
