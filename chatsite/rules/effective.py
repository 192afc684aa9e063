"""Which rules hold for one person, from what was decided for the site, their groups and themselves.

Quotas: the person's own; else the most generous of their groups; else the site's. Pools: of every group that has one,
each for itself. Retention: the shortest of their groups; else the site's. A second factor: when anybody asks for it.
Reads rows, writes none; each call reads afresh, so that a change counts at once in every process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chatsite.accounts.models import User
from chatsite.rules.models import GroupRules, SiteRules, UserRules


@dataclass(frozen=True)
class Pool:
    """What all members of a group may use together; None: no limit."""

    group_id: int
    group_name: str
    tokens_per_day: int | None
    tokens_per_month: int | None


@dataclass(frozen=True)
class Rules:
    """Of one person. None: no limit, no end."""

    tokens_per_day: int | None
    tokens_per_month: int | None
    pools: tuple[Pool, ...]  # by group id
    retention_days: int | None
    requires_two_factor: bool
    key_days: int | None


def site_rules() -> SiteRules:
    """The site's row, or one with the defaults that is not saved yet."""
    return SiteRules.objects.first() or SiteRules(id=1)


def rules_of(user: User) -> Rules:
    site = site_rules()
    own = UserRules.objects.filter(user=user).first() or UserRules()
    groups = list(GroupRules.objects.filter(group__user=user).select_related("group").order_by("group_id"))
    return Rules(
        tokens_per_day=_first(own.tokens_per_day, _most(g.tokens_per_day for g in groups), site.tokens_per_day),
        tokens_per_month=_first(own.tokens_per_month, _most(g.tokens_per_month for g in groups), site.tokens_per_month),
        pools=tuple(
            Pool(g.group_id, g.group.name, g.pool_per_day, g.pool_per_month)
            for g in groups
            if g.pool_per_day is not None or g.pool_per_month is not None
        ),
        retention_days=_first(
            min((g.retention_days for g in groups if g.retention_days is not None), default=None), site.retention_days
        ),
        requires_two_factor=any(g.requires_two_factor for g in groups)
        or site.two_factor == SiteRules.TwoFactor.EVERYBODY
        or (site.two_factor == SiteRules.TwoFactor.STAFF and user.is_staff),
        key_days=site.key_days,
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
