"""Who may see more than their own: staff, and whoever holds the permission of a page.

A permission is enough for its page, staff or not; `is_staff` alone opens Django's admin and, as ever, the fleet. The
migration `0002_roles` makes three groups that hold them; an admin may change, rename or delete these like any other.
Called by views and by `effective`; templates ask `perms` for the same names.
"""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser

from chatsite.accounts.models import User

FLEET = "rules.view_fleet"
ANALYTICS = "rules.view_analytics"
TRANSCRIPTS = "review.view_transcript"
AUDIT = "audit.view_auditentry"
ALL = (FLEET, ANALYTICS, TRANSCRIPTS, AUDIT)

Visitor = User | AnonymousUser


def may_see_fleet(visitor: Visitor) -> bool:
    return visitor.is_active and (visitor.is_staff or visitor.has_perm(FLEET))


def may_see_analytics(visitor: Visitor) -> bool:
    return visitor.has_perm(ANALYTICS)


def is_trusted(user: User) -> bool:
    """Whether `user` gets to see more than their own, by whatever way: rules for staff hold for them."""
    return user.is_staff or any(user.has_perm(permission) for permission in ALL)
