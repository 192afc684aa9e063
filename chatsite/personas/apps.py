from django.apps import AppConfig


class PersonasConfig(AppConfig):
    name = "chatsite.personas"
    label = "personas"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from chatsite.chat.actions import presets
        from chatsite.personas import library

        presets.register(library.Presets())
