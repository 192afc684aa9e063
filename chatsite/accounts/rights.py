"""Who may change whose account: nobody changes somebody who holds a right that they themselves lack.

Otherwise the permission to change people would be every permission: whoever sets a reviewer's password reads as the
reviewer. Changing means all that lets one take an account over or away: its password, name, mail, second factor,
sessions, keys, outside sign-ins, groups, state and end. Rights are permissions, one's own or a group's, being staff and
being a superuser. They count although an account is switched off, for switching it on again is a change, too.

The one place of this rule, for all pages of the admin (`guarding`). Commands are run by whoever owns the machine, and
are allowed.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, Model, OuterRef, Q, QuerySet
from django.dispatch import Signal

from chatsite.accounts.models import User

# Somebody was refused a change. `row`: what they tried to change; `person`: whose it is, None for a group's.
change_refused = Signal()


class ChangeRefused(PermissionDenied):
    """Nothing was changed. `row` is what was to be changed, `person` whose it is."""

    def __init__(self, row: Model, person: User | None) -> None:
        super().__init__("Somebody who holds rights that you lack can be changed only by who has them all.")
        self.row = row
        self.person = person


def held(actor: Any) -> QuerySet[Permission]:
    """The permissions that `actor` has, and so may give."""
    if not _is_somebody(actor):
        return Permission.objects.none()
    if actor.is_superuser:
        return Permission.objects.all()
    return Permission.objects.filter(Q(user=actor.pk) | Q(group__user=actor.pk)).distinct()


def beyond(actor: Any) -> QuerySet[User]:
    """Everybody whom `actor` may not change. One's own account is never among them."""
    if not _is_somebody(actor):
        return User.objects.all()
    if actor.is_superuser:
        return User.objects.none()
    more = Q(Exists(_lacking(User.user_permissions.through, actor).filter(user=OuterRef("pk"))))
    more |= Q(Exists(_lacking(Group.permissions.through, actor).filter(group__user=OuterRef("pk"))))
    more |= Q(is_superuser=True)
    if not actor.is_staff:
        more |= Q(is_staff=True)
    return User.objects.filter(more).exclude(pk=actor.pk)


def groups_beyond(actor: Any) -> QuerySet[Group]:
    """The groups that `actor` may not change: they hold a permission that `actor` lacks, or a member does."""
    if _is_somebody(actor) and actor.is_superuser:
        return Group.objects.none()
    lacking = Exists(_lacking(Group.permissions.through, actor).filter(group=OuterRef("pk")))
    members = User.groups.through._base_manager.filter(group=OuterRef("pk"), user__in=beyond(actor))
    return Group.objects.filter(Q(lacking) | Q(Exists(members)))


def may_change(actor: Any, person: User) -> bool:
    """Whether `actor`, given the permission to change people at all, may change this one."""
    return not beyond(actor).filter(pk=person.pk).exists()


def _lacking(through: Any, actor: Any) -> QuerySet[Any]:
    """Rows of `through`, which say who holds which permission, as far as `actor` does not hold it."""
    return through._base_manager.exclude(permission__in=held(actor).values("pk"))  # type: ignore[no-any-return]


def _is_somebody(actor: Any) -> bool:
    return isinstance(actor, User) and actor.is_active
