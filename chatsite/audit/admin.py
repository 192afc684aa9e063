"""What is done in Django's admin and told by no receiver: one entry for each of its own log.

Django keeps a log of the admin alone, which whoever may can empty. Of several rows deleted at once it sends no signal,
so that its action is given a second half here. Neither a row's text form nor a value is repeated: they quote people.
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.db import transaction
from django.db.models import Model, QuerySet
from django.db.models.signals import post_save
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse

from chatsite.audit import log
from chatsite.audit.models import Action

# Rows of these tell themselves, see `rows`.
TOLD = frozenset(
    {
        "accounts.user",
        "accounts.apikey",
        "auth.group",
        "mfa.authenticator",
        "rules.grouprules",
        "rules.siterules",
        "rules.userrules",
        "sharing.share",
        "socialaccount.socialaccount",
    }
)
CHANGES = {ADDITION: "added", CHANGE: "changed", DELETION: "deleted"}
IDS_KEPT = 100


@receiver(post_save, sender=LogEntry, dispatch_uid="audit admin")
def done(instance: LogEntry, created: bool, raw: bool, **_: Any) -> None:
    kind = instance.content_type
    model = kind.model_class() if kind else None
    if raw or not created or model is None or model._meta.label_lower in TOLD:
        return
    detail: dict[str, Any] = {"change": CHANGES[instance.action_flag]}
    if fields := _fields_of(instance.change_message):
        detail["fields"] = fields
    target = f"{model._meta.verbose_name} {instance.object_id}"
    log.record(Action.RECORDS_CHANGED, actor=instance.user, target=target, detail=detail)


def _fields_of(message: str) -> list[str]:
    """The names of the columns, as the admin's message has them; an action's own words are left out."""
    parts = json.loads(message) if message.startswith("[") else []
    return [str(name) for part in parts for change in part.values() for name in change.get("fields", ())]


def delete_marked(modeladmin: Any, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
    """Django's own, recorded."""
    ids = [str(pk) for pk in queryset.order_by("pk").values_list("pk", flat=True)] if "post" in request.POST else []
    with transaction.atomic():
        response = delete_selected(modeladmin, request, queryset)
        is_done = response is None and len(ids) > 1  # of a single one Django tells
        if is_done and modeladmin.model._meta.label_lower not in TOLD:
            detail = {"change": "deleted", "number": len(ids), "ids": ids[:IDS_KEPT]}
            target = str(modeladmin.model._meta.verbose_name_plural)
            log.record(Action.RECORDS_CHANGED, target=target, detail=detail)
    return response


for _name in ("allowed_permissions", "short_description"):
    setattr(delete_marked, _name, getattr(delete_selected, _name))
admin.site.add_action(delete_marked, "delete_selected")
