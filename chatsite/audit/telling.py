"""An entry's detail as lines to read. Names it does not know stand as they are: others record what they need.

Called by the views, in the reader's language.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatsite.audit.models import AuditEntry

NOTHING = "–"
LABELS = {
    "change": gettext_lazy("Change"),
    "email": gettext_lazy("E-mail"),
    "expires_at": gettext_lazy("Ends"),
    "first_name": gettext_lazy("First name"),
    "groups_added": gettext_lazy("Groups added"),
    "groups_removed": gettext_lazy("Groups removed"),
    "is_active": gettext_lazy("May sign in"),
    "is_staff": gettext_lazy("Staff"),
    "is_superuser": gettext_lazy("Superuser"),
    "last_name": gettext_lazy("Last name"),
    "methods": gettext_lazy("Signed in with"),
    "name": gettext_lazy("Name"),
    "number": gettext_lazy("How many"),
    "permissions_added": gettext_lazy("Permissions added"),
    "permissions_removed": gettext_lazy("Permissions removed"),
    "reason": gettext_lazy("Reason"),
    "scope": gettext_lazy("For"),
    "scopes": gettext_lazy("Allowed to"),
    "step": gettext_lazy("What was wrong"),
    "username": gettext_lazy("User name"),
}
WORDS = {
    "added": gettext_lazy("added"),
    "changed": gettext_lazy("changed"),
    "confirmed": gettext_lazy("confirmed"),
    "deleted": gettext_lazy("deleted"),
    "made": gettext_lazy("made"),
    "made primary": gettext_lazy("made primary"),
    "mfa": gettext_lazy("second factor"),
    "password": gettext_lazy("password"),
    "removed": gettext_lazy("removed"),
    "reset by mail": gettext_lazy("reset by mail"),
    "second factor": gettext_lazy("second factor"),
}


def lines_of(entry: AuditEntry) -> list[str]:
    """What changed from what to what, then the other facts."""
    rest = dict(entry.detail)
    pairs = [*_pairs(rest.pop("changes", None)), *_pairs(rest.pop("personal", None)), *rest.items()]
    changed = {"changes", "personal"} & entry.detail.keys()
    return [_line(name, value, is_change=bool(changed)) for name, value in pairs]


def _pairs(part: Any) -> Iterator[tuple[str, Any]]:
    yield from part.items() if isinstance(part, dict) else ()


def _line(name: str, value: Any, *, is_change: bool) -> str:
    label = LABELS.get(name) or name.replace("_", " ").capitalize()
    if is_change and isinstance(value, list) and len(value) == 2:
        return f"{label}: {_shown(value[0])} → {_shown(value[1])}"
    return f"{label}: {_shown(value)}"


def _shown(value: Any) -> str:
    if value is None or value == "" or value == []:
        return NOTHING
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return str(WORDS.get(value, value)) if isinstance(value, str) else str(value)
