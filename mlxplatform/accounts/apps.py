from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "mlxplatform.accounts"
    label = "accounts"
