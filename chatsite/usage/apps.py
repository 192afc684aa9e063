from django.apps import AppConfig


class UsageConfig(AppConfig):
    name = "chatsite.usage"
    default_auto_field = "django.db.models.BigAutoField"
