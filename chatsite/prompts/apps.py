from django.apps import AppConfig


class PromptsConfig(AppConfig):
    name = "chatsite.prompts"
    label = "prompts"
    default_auto_field = "django.db.models.BigAutoField"
