from django.apps import AppConfig


class RetentionConfig(AppConfig):
    name = "mlxplatform.retention"
    label = "retention"
