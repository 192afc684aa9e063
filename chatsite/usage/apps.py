"""Usage as a Django app. However an API key's row is deleted, what was used with it stays in the ledger."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import pre_delete


class UsageConfig(AppConfig):
    name = "chatsite.usage"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from chatsite.usage import ledger  # models are loaded only once apps are ready

        pre_delete.connect(ledger.let_go_of_key, sender="accounts.ApiKey", dispatch_uid="usage-lets-go-of-key")
