"""The wire protocols as a Django app: it only hands the batches their line protocols when everything is loaded."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "mlxplatform.api"
    label = "api"

    def ready(self) -> None:
        from mlxplatform.api import batch_lines

        batch_lines.register_all()
