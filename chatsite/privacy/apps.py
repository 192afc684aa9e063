from django.apps import AppConfig


class PrivacyConfig(AppConfig):
    name = "chatsite.privacy"
    default_auto_field = "django.db.models.BigAutoField"
