from django.apps import AppConfig


class FilesConfig(AppConfig):
    name = "mlxplatform.files"
    label = "files"
