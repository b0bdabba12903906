from django.apps import AppConfig


class BatchesConfig(AppConfig):
    name = "mlxplatform.batches"
    label = "batches"
