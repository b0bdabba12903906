from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "mlxplatform.jobs"
    label = "jobs"
