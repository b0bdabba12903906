from django.apps import AppConfig


class MemoryConfig(AppConfig):
    name = "mlxplatform.memory"
    label = "memory"

    def ready(self) -> None:
        from mlxplatform.jobs.kinds import JobKind, register

        register(JobKind("memory_synthesis", "mlxplatform.memory.runs:run", title="Write memory pages"))
        register(JobKind("memory_import", "mlxplatform.memory.runs:run_import", title="Import conversations"))
