from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "mlxplatform.console"
    label = "console"
