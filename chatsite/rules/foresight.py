"""What a rule will delete once it is made, so that who makes it is told the number first.

Conversations belong to a higher app, so they are reached by name: this only counts, and reads no text. Called by the
admin's forms.
"""

from __future__ import annotations

import datetime

from django.apps import apps
from django.contrib.auth.models import Group
from django.utils import timezone

from chatsite.rules.models import GroupRules


def num_due(days: int, group: Group | None = None) -> int:
    """How many conversations had their last message more than `days` days ago.

    Of a group's members; without one, of everybody for whom no group says how long theirs stay.
    """
    rows = apps.get_model("chat", "Conversation")._default_manager.filter(
        updated_at__lt=timezone.now() - datetime.timedelta(days=days)
    )
    if group is not None:
        return rows.filter(owner__groups=group).count()
    decided = GroupRules.objects.filter(retention_days__isnull=False)
    return rows.exclude(owner__groups__rules__in=decided).count()


def is_sooner(days: int | None, before: int | None) -> bool:
    """Whether conversations go earlier than they did; None: never."""
    return days is not None and (before is None or days < before)
