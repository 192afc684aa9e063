"""What a save changes: the watched columns of a row before and after it.

Asks Postgres for the row before each save that may touch a watched column, for an instance in memory may be old. What
is changed without a save (`QuerySet.update`, `bulk_create`, SQL) is not seen: whoever does that to something watched
records it themself.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection
from typing import Any

from django.db.models import Model
from django.db.models.signals import post_save, pre_save

Changes = dict[str, list[Any]]  # column -> its value before and after, as JSON has it

BEFORE = "_audited_before"  # where an instance keeps its columns while it is being saved


class Watch:
    """Calls `tell(instance, changes, is_new)` after each save of the model `label` that changed one of `columns`.

    And after each that made a row: then the values before are the defaults. No `columns`: all but ids and relations.
    """

    def __init__(
        self, label: str, tell: Callable[[Any, Changes, bool], None], *, columns: Collection[str] | None = None
    ) -> None:
        self._columns = columns
        self._tell = tell
        pre_save.connect(self._before, sender=label, weak=False, dispatch_uid=f"audit {label}")
        post_save.connect(self._after, sender=label, weak=False, dispatch_uid=f"audit {label}")

    def _before(
        self, sender: type[Model], instance: Model, raw: bool, update_fields: Collection[str] | None, **_: Any
    ) -> None:
        names = [name for name in self._names(sender) if update_fields is None or name in update_fields]
        is_surely_new = instance._state.adding and sender._meta.pk.has_default()
        row = None
        if names and not raw and not is_surely_new:
            row = sender._base_manager.filter(pk=instance.pk).values(*names).first()
        vars(instance)[BEFORE] = row

    def _after(self, sender: type[Model], instance: Model, created: bool, raw: bool, **_: Any) -> None:
        before = vars(instance).pop(BEFORE, None)
        if raw:
            return
        if created:
            fresh = sender()
            before = {name: getattr(fresh, name) for name in self._names(sender)}
        changes = {
            name: [_plain(old), _plain(new)]
            for name, old in (before or {}).items()
            if (new := getattr(instance, name)) != old
        }
        if created or changes:
            self._tell(instance, changes, created)

    def _names(self, model: type[Model]) -> Collection[str]:
        if self._columns is not None:
            return self._columns
        return [f.name for f in model._meta.concrete_fields if not f.primary_key and not f.is_relation]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return value.isoformat() if isinstance(value, datetime.date) else str(value)
