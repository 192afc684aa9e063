"""Quotas: what people and groups may still use, and the promise that parallel answers together never use more.

An answer reserves the most that it can cost before it is stored, and its end puts the real cost in place of that in
one transaction; so what is used and what is held are read by one statement, which sees each answer as exactly one of
the two. A person's row, and then the rows of their groups by id, are locked while a reservation is made. Knows tokens
alone, no messages and no requests. Called by the chat (in its transactions), the page of one's own usage and templates.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from django.contrib.auth.models import Group
from django.db import connection
from django.utils import timezone
from prometheus_client import CollectorRegistry, Counter

from chatsite.accounts.models import User
from chatsite.accounts.time_zones import zone_of
from chatsite.rules.effective import Pool, Quotas, quotas_of
from chatsite.usage import own_days
from chatsite.usage.calendar import Scope, Window, month_of, seconds_until, window

HELD_SECONDS = 10  # where only answers under way are in the way, their end may make room at any moment
LOW_PERCENT = 10

counted = CollectorRegistry()
REFUSED = Counter(
    "smolfleet_quota_refusals", "Messages refused for want of tokens", ["scope", "whose"], registry=counted
)

_OWN = 0  # in place of a group's id
_SUMS = """
WITH member (purse, user_id) AS (
    SELECT group_id, user_id FROM accounts_user_groups WHERE group_id = ANY(%(groups)s)
), used AS (
    SELECT purse, sum(charged_tokens) FILTER (WHERE day = %(today)s) AS today, sum(charged_tokens) AS this_month
    FROM member JOIN usage_usageday USING (user_id) WHERE day >= %(month)s GROUP BY purse
    UNION ALL
    SELECT 0, sum(charged_tokens) FILTER (WHERE day = %(own_day)s), sum(charged_tokens)
    FROM usage_ownday WHERE user_id = %(user)s AND day >= %(own_month)s
), held AS (
    SELECT purse, sum(reserved_tokens) AS tokens
    FROM (SELECT purse, user_id FROM member UNION ALL SELECT 0, %(user)s) AS everybody
    JOIN chat_generation USING (user_id) WHERE status = 'active' GROUP BY purse
)
SELECT purse, coalesce(today, 0), coalesce(this_month, 0), coalesce(tokens, 0)
FROM used FULL JOIN held USING (purse)
"""


@dataclass(frozen=True)
class Balance:
    """Tokens of one person, or with `pool` of one group, in one day or month. `limit` None: no limit."""

    window: Window
    limit: int | None
    used: int
    reserved: int  # by answers that are being written or wait
    pool: Pool | None = None

    @property
    def scope(self) -> Scope:
        return self.window.scope

    @property
    def resets_at(self) -> datetime.datetime:
        return self.window.resets_at

    @property
    def left(self) -> int | None:
        """For another answer, now."""
        return None if self.limit is None else max(0, self.limit - self.used - self.reserved)

    @property
    def unspent(self) -> int | None:
        """The same, should the answers under way cost nothing."""
        return None if self.limit is None else max(0, self.limit - self.used)

    @property
    def low_tokens(self) -> int:
        """Fewer unspent ones than this are low; 0 without a limit."""
        return -(-(self.limit or 0) * LOW_PERCENT // 100)

    @property
    def is_low(self) -> bool:
        return self.limit is not None and (self.unspent or 0) < self.low_tokens


@dataclass(frozen=True)
class Standing:
    day: Balance
    month: Balance
    pools: tuple[Balance, ...]  # those that have a limit

    @property
    def tightest(self) -> Balance | None:
        """The balance with the smallest part of its limit unspent; None where nothing is limited."""
        limited = [balance for balance in (self.day, self.month, *self.pools) if balance.limit is not None]
        return min(limited, key=lambda b: (b.unspent or 0) / max(1, b.limit or 0), default=None)


class QuotaFull(Exception):
    """An answer needs `needed` tokens at least, more than `balance` has left."""

    def __init__(self, balance: Balance, needed: int, now: datetime.datetime) -> None:
        super().__init__(f"{needed} tokens are needed, {balance.left} are left of this {balance.scope}'s.")
        self.balance = balance
        self.needed = needed
        self.now = now

    @property
    def is_held(self) -> bool:
        """Whether there is room once the answers under way cost less than they may."""
        return (self.balance.unspent or 0) >= self.needed

    @property
    def retry_after_seconds(self) -> int:
        """How long until it may fit."""
        until_reset = seconds_until(self.balance.resets_at, self.now)
        return min(HELD_SECONDS, until_reset) if self.is_held else until_reset


def reserve(
    user: User, *, wanted: int, least: int, quotas: Quotas | None = None, now: datetime.datetime | None = None
) -> int:
    """How many tokens a new answer of this user may cost: `wanted`, or what is left, which is at least `least`.

    Nothing is written: in the same transaction, which already holds the user's row, the caller stores a generation
    that has them reserved.

    Raises:
        QuotaFull: fewer than `least` are left.
    """
    assert connection.in_atomic_block, "else nothing holds until the reservation is stored"
    quotas = quotas_of(user) if quotas is None else quotas
    if not quotas:
        return wanted
    now = now or timezone.now()
    if quotas.pools:
        groups = Group.objects.filter(pk__in=[pool.group_id for pool in quotas.pools])
        list(groups.select_for_update(no_key=True).order_by("pk").values_list("pk"))
    limited = [balance for balance in _balances(user, quotas, now) if balance.limit is not None]
    short = [QuotaFull(balance, least, now) for balance in limited if (balance.left or 0) < least]
    if short:
        full = max(short, key=lambda full: full.retry_after_seconds)  # that is when there is room in all of them
        REFUSED.labels(full.balance.scope.value, "group" if full.balance.pool else "own").inc()
        raise full
    return min(wanted, *(balance.left or 0 for balance in limited))


def standing(user: User, *, quotas: Quotas | None = None, now: datetime.datetime | None = None) -> Standing:
    """What this person has used and may still use, now."""
    quotas = quotas_of(user) if quotas is None else quotas
    day, month, *pools = _balances(user, quotas, now or timezone.now())
    return Standing(day, month, tuple(balance for balance in pools if balance.limit is not None))


def running_low(user: User) -> Balance | None:
    """The balance of which less than a tenth is left, the tightest where there are several."""
    quotas = quotas_of(user)
    tightest = standing(user, quotas=quotas).tightest if quotas else None
    return tightest if tightest is not None and tightest.is_low else None


def _balances(user: User, quotas: Quotas, now: datetime.datetime) -> Sequence[Balance]:
    """Own day and month first, by the person's days; then those of each pool, by the site's."""
    zone = zone_of(user)
    own = own_days.day_at(user.pk, now, zone)
    own_day = Window(Scope.DAY, own.day, own.ends_at.astimezone(zone))
    own_month = month_of(own.day, zone)
    day, month = (_shown(window(scope, now), zone) for scope in (Scope.DAY, Scope.MONTH))
    with connection.cursor() as cursor:
        groups = [pool.group_id for pool in quotas.pools]
        days = {"today": day.first_day, "month": month.first_day}
        own_ones = {"own_day": own_day.first_day, "own_month": own_month.first_day}
        cursor.execute(_SUMS, {"user": user.pk, "groups": groups, **days, **own_ones})
        sums = {purse: tuple(map(int, tokens)) for purse, *tokens in cursor.fetchall()}

    def both(purse: int, per_day: int | None, per_month: int | None, pool: Pool | None = None) -> Iterable[Balance]:
        today, this_month, held = sums.get(purse, (0, 0, 0))
        yield Balance(day if pool else own_day, per_day, today, held, pool)
        yield Balance(month if pool else own_month, per_month, this_month, held, pool)

    mine = both(_OWN, quotas.tokens_per_day, quotas.tokens_per_month)
    pools = (both(p.group_id, p.tokens_per_day, p.tokens_per_month, p) for p in quotas.pools)
    return [*mine, *(balance for pair in pools for balance in pair)]


def _shown(window: Window, zone: datetime.tzinfo) -> Window:
    """With its end as its reader's clock has it."""
    return replace(window, resets_at=window.resets_at.astimezone(zone))
