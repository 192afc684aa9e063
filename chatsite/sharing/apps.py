from django.apps import AppConfig


class SharingConfig(AppConfig):
    name = "chatsite.sharing"
    label = "sharing"
    default_auto_field = "django.db.models.BigAutoField"
