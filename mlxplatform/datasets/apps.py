from django.apps import AppConfig


class DatasetsConfig(AppConfig):
    name = "mlxplatform.datasets"
    label = "datasets"
