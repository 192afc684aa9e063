from django.apps import AppConfig


class TransferConfig(AppConfig):
    name = "chatsite.transfer"
    label = "transfer"
    default_auto_field = "django.db.models.BigAutoField"
