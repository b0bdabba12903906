"""The wire protocols as a Django app: when everything is loaded, it hands the batches their line protocols and the web
process its work beside the requests."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "mlxplatform.api"
    label = "api"

    def ready(self) -> None:
        from mlxplatform.api import batch_lines, tending
        from mlxplatform.http import beside

        batch_lines.register_all()
        beside.add(tending.keep)
