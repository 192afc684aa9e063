from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "chatsite.audit"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from chatsite.audit import receivers

        receivers.connect()
