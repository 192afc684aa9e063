"""Which rules hold for one person, from what was decided for the site, their groups and themselves.

Quotas: the person's own; else the most generous of their groups; else the site's. Pools: of every group that has one,
each for itself. Retention: the shortest of their groups; else the site's. A second factor: when anybody asks for it;
where the site asks it of staff, whoever has a role counts as such.

Reads rows, writes none; each call reads afresh, so that a change counts at once in every process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import BigIntegerField, Q, Value
from django.db.models.functions import Cast

from chatsite.accounts.models import User
from chatsite.rules import roles
from chatsite.rules.models import GroupRules, SiteRules, UserRules


@dataclass(frozen=True)
class Pool:
    """What all members of a group may use together; None: no limit."""

    group_id: int
    group_name: str
    tokens_per_day: int | None
    tokens_per_month: int | None


@dataclass(frozen=True)
class Quotas:
    """The part of one person's rules that each message asks for. None: no limit."""

    tokens_per_day: int | None
    tokens_per_month: int | None
    pools: tuple[Pool, ...]  # by group id

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return self.tokens_per_day is not None or self.tokens_per_month is not None or bool(self.pools)


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


def quotas_of(user: User) -> Quotas:
    """In one query: it is asked for with every message."""
    nothing = Cast(Value(None), BigIntegerField())
    limits = ("tokens_per_day", "tokens_per_month")
    frame = (Value(0), Value(""), nothing, nothing)
    own = UserRules.objects.filter(user=user).values_list(Value("own"), *limits, *frame)
    site = SiteRules.objects.values_list(Value("site"), *limits, *frame)
    columns = ("group_id", "group__name", "pool_per_day", "pool_per_month")
    groups = GroupRules.objects.filter(group__user=user).values_list(Value("group"), *limits, *columns)
    rows = list(own.union(groups, site, all=True))

    def days_and_months(kind: str) -> tuple[int | None, int | None]:
        found = [row for row in rows if row[0] == kind]
        return _most(row[1] for row in found), _most(row[2] for row in found)

    days, months = zip(*map(days_and_months, ("own", "group", "site")), strict=True)
    pools = sorted(row[3:] for row in rows if row[5] is not None or row[6] is not None)
    return Quotas(_first(*days), _first(*months), tuple(Pool(*row) for row in pools))


def rules_of(user: User) -> Rules:
    site = site_rules()
    quotas = quotas_of(user)
    groups = list(GroupRules.objects.filter(group__user=user))
    return Rules(
        tokens_per_day=quotas.tokens_per_day,
        tokens_per_month=quotas.tokens_per_month,
        pools=quotas.pools,
        retention_days=_first(
            min((g.retention_days for g in groups if g.retention_days is not None), default=None), site.retention_days
        ),
        requires_two_factor=any(g.requires_two_factor for g in groups)
        or site.two_factor == SiteRules.TwoFactor.EVERYBODY
        or (site.two_factor == SiteRules.TwoFactor.STAFF and roles.is_trusted(user)),
        key_days=site.key_days,
    )


def by_retention(user: str) -> list[tuple[int | None, Q]]:
    """Everybody, by how long their conversations stay: the days (None: for ever), and a condition on rows whose field
    `user` is a person of that class. As many conditions as there are different rules, however many people."""
    grouped = User.objects.filter(groups__rules__retention_days__isnull=False)
    different = GroupRules.objects.filter(retention_days__isnull=False).values_list("retention_days", flat=True)
    classes: list[tuple[int | None, Q]] = []
    for days in different.distinct().order_by("retention_days"):
        shorter = User.objects.filter(groups__rules__retention_days__lt=days)
        members = User.objects.filter(groups__rules__retention_days=days).exclude(pk__in=shorter.values("pk"))
        classes.append((days, Q(**{f"{user}__in": members.values("pk")})))
    others = ~Q(**{f"{user}__in": grouped.values("pk")}) if classes else Q()
    return [*classes, (site_rules().retention_days, others)]


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
