from django.apps import AppConfig


class LibraryConfig(AppConfig):
    name = "mlxplatform.library"
    label = "library"
