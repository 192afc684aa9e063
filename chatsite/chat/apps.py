"""The chat as a Django app. However a generation's row is deleted (by its owner, with the account, in the admin), its
log in Redis goes with it, and what it had cost is in the ledger."""

from __future__ import annotations

import functools
from typing import Any

from django.apps import AppConfig
from django.db import transaction
from django.db.models.signals import post_delete, pre_delete


class ChatConfig(AppConfig):
    name = "chatsite.chat"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from chatsite.chat.generation import quota
        from chatsite.chat.streams import revocation  # models are loaded only once apps are ready

        pre_delete.connect(quota.hold_doomed, sender="chat.Generation", dispatch_uid="hold-doomed-generation")
        post_delete.connect(quota.enter_deleted, sender="chat.Generation", dispatch_uid="enter-deleted-generation")
        revocation.connect()
        post_delete.connect(_forget_deleted, sender="chat.Generation", dispatch_uid="forget-deleted-generation")


def _forget_deleted(instance: Any, **kwargs: Any) -> None:
    from chatsite.chat import inference  # models are loaded only once apps are ready

    if inference.may_be_kept(instance):
        transaction.on_commit(functools.partial(inference.forget, instance.pk), robust=True)
