from django.apps import AppConfig

from mlxplatform.jobs.kinds import JobKind, register


class DatasetsConfig(AppConfig):
    name = "mlxplatform.datasets"
    label = "datasets"

    def ready(self) -> None:
        ended = "mlxplatform.datasets.lifecycle:job_ended"
        register(JobKind("dataset", "mlxplatform.datasets.run:run", pausable=True, title="Dataset", ended=ended))
        register(JobKind("dataset_preview", "mlxplatform.datasets.run:run", title="Dataset preview", ended=ended))
        register(JobKind("dataset_import", "mlxplatform.datasets.imports.run:run", title="Dataset import", ended=ended))
        register(JobKind("dataset_push", "mlxplatform.datasets.pushing:run", title="Dataset push"))
