from django.apps import AppConfig


class InferenceConfig(AppConfig):
    name = "mlxplatform.inference"
    label = "inference"
