from django.apps import AppConfig


class SchedulesConfig(AppConfig):
    name = "mlxplatform.schedules"
    label = "schedules"

    def ready(self) -> None:
        from mlxplatform.schedules import starters

        starters.register_known()
