from django.apps import AppConfig


class SchedulesConfig(AppConfig):
    name = "mlxplatform.schedules"
    label = "schedules"
