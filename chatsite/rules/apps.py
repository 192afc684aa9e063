from django.apps import AppConfig


class RulesConfig(AppConfig):
    name = "chatsite.rules"
    default_auto_field = "django.db.models.BigAutoField"
