from django.apps import AppConfig
from django.db.models.signals import pre_delete


class MemoryConfig(AppConfig):
    name = "mlxplatform.memory"
    label = "memory"

    def ready(self) -> None:
        from mlxplatform.inference.request_log import forgotten
        from mlxplatform.jobs.kinds import JobKind, register
        from mlxplatform.memory.models import Section
        from mlxplatform.memory.receivers import note_deletion, note_section

        # One at a time: runs of one vault take turns anyway, and a waiting one would only hold a worker thread.
        register(
            JobKind("memory_synthesis", "mlxplatform.memory.runs:run", pausable=True, concurrency=1, title="Write memory pages")
        )
        register(JobKind("memory_import", "mlxplatform.memory.runs:run_import", title="Import conversations"))
        forgotten.connect(note_deletion, dispatch_uid="memory")
        pre_delete.connect(note_section, sender=Section, dispatch_uid="memory")
