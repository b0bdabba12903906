from django.apps import AppConfig


class RowsConfig(AppConfig):
    name = "mlxplatform.rows"
    label = "rows"
