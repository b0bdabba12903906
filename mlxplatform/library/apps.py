from django.apps import AppConfig

from mlxplatform.jobs.kinds import JobKind, register


class LibraryConfig(AppConfig):
    name = "mlxplatform.library"
    label = "library"

    def ready(self) -> None:
        register(JobKind("download", "mlxplatform.library.downloads:run", max_attempts=5, title="Download", pausable=True))
        register(
            JobKind(
                "adopt",
                "mlxplatform.library.adoption:run",
                concurrency=1,
                title="Adopt a model",
                ended="mlxplatform.library.names:job_ended",
            )
        )
