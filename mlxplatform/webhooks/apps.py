from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "mlxplatform.webhooks"
    label = "webhooks"

    def ready(self) -> None:
        from mlxplatform.jobs import moves
        from mlxplatform.webhooks.service import job_ended

        moves.end_listeners.append(job_ended)
