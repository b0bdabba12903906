from django.apps import AppConfig


class OperationsConfig(AppConfig):
    name = "mlxplatform.operations"
    label = "operations"
