from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "chatsite.accounts"
    label = "accounts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from chatsite.accounts.outside import groups

        groups.watch()
