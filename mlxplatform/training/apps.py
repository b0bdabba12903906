from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "mlxplatform.training"
    label = "training"
