from django.apps import AppConfig


class MemoryConfig(AppConfig):
    name = "mlxplatform.memory"
    label = "memory"
