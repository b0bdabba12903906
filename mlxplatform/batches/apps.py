from django.apps import AppConfig


class BatchesConfig(AppConfig):
    name = "mlxplatform.batches"
    label = "batches"

    def ready(self) -> None:
        from mlxplatform.batches import results
        from mlxplatform.batches.ending import FINISH_KIND
        from mlxplatform.batches.service import KIND
        from mlxplatform.files import service as files
        from mlxplatform.jobs.kinds import JobKind, register

        here = "mlxplatform.batches"
        register(JobKind(KIND, f"{here}.run:run", pausable=True, ended=f"{here}.ending:job_ended", title="Batch"))
        register(JobKind(FINISH_KIND, f"{here}.ending:run_finish", max_attempts=20, max_deaths=20, title="End of a batch"))
        files.producers["batch"] = results.live
        files.holders.append(results.held_inputs)
