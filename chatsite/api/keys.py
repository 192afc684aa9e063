"""Who may have which API keys, what each may do, and until when: make, name anew, revoke.

One verb, one transaction, under its owner's row lock. Every change is saved row by row, so that the audit log hears of
it. A secret is returned once, by `create`, and kept nowhere. Called by the views, by `authentication` and by
`manage.py createapikey`; synchronous.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from chatsite.accounts.models import SCOPES, ApiKey, User
from chatsite.chat.queries import access
from chatsite.chat.text import clean_typed
from chatsite.rules import effective

MAX_LIVE_KEYS = 50  # of one person
ENDED_SHOWN = 20
MAX_NAME_CHARS = 80
MAX_DAYS = 3_650
NO_SCOPE = gettext_lazy("A key must be allowed something: choose at least one.")


class KeyRefused(Exception):
    """Nothing was stored; the sentence says why. `field` is the form's field it is about."""

    http_status = 400

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class AlreadyMade(KeyRefused):
    """The same press of the button again. The key stands, and its secret has been shown."""

    http_status = 409

    def __init__(self, key: ApiKey) -> None:
        super().__init__(
            _(
                "The key %(name)s was made already. It was shown then and cannot be shown again: if you do not have"
                " it, revoke it and make another."
            )
            % {"name": key}
        )


class State(StrEnum):
    LIVE = "live"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True)
class Standing:
    """A key as its owner's list shows it."""

    key: ApiKey
    state: State
    ends_at: datetime.datetime | None
    is_cut: bool  # by the site's rule, sooner than the key itself says


def longest_days(user: User) -> int | None:
    """How many days a key of this person counts at most; None: as long as its owner says."""
    return effective.site_rules().key_days


def end_of(key: ApiKey, longest: int | None) -> tuple[datetime.datetime | None, bool]:
    """When it ends or ended, None for never, and whether the site's rule is why."""
    if longest is None:
        return key.expires_at, False
    limit = key.created_at + datetime.timedelta(days=longest)
    if key.expires_at is None or key.expires_at > limit:
        return limit, True
    return key.expires_at, False


def keys_of(user: User) -> QuerySet[ApiKey]:
    return ApiKey.objects.filter(user=user)


def key_of(user: User, pk: UUID) -> ApiKey:
    """Raises Http404 unless it is the user's."""
    return access.only(keys_of(user), pk)


def standings_of(user: User) -> list[Standing]:
    """A person's keys that count, then the latest of those that do not; each part by age, the newest first."""
    longest = longest_days(user)
    live = _live_keys_of(user, longest)
    ended = keys_of(user).exclude(pk__in=live.values("pk"))[:ENDED_SHOWN]
    return [_standing(key, longest) for key in (*live, *ended)]


def create(
    user: User, name: str, *, scopes: Sequence[str], days: int | None = None, token: UUID | None = None
) -> tuple[ApiKey, str]:
    """A new key and its secret, which nobody can read again. It counts for `days`, or for ever.

    `token` stands for one press of the button: the second time it makes nothing.

    Raises:
        KeyRefused: nothing was stored; `AlreadyMade` for a token that has made its key.
    """
    name = _checked_name(name)
    wanted = _checked_scopes(scopes)
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        # The id says which press made it, among this person's alone: nobody can take an id from somebody else.
        pk = uuid.uuid5(user.pk, str(token)) if token else None
        if pk and (made := keys_of(user).filter(pk=pk).first()):
            raise AlreadyMade(made)
        longest = longest_days(user)
        _check_days(days, longest)
        if _live_keys_of(user, longest).count() >= MAX_LIVE_KEYS:
            raise KeyRefused(
                _("You have %(most)d keys that count; that is the most. Revoke one first.") % {"most": MAX_LIVE_KEYS}
            )
        expires_at = timezone.now() + datetime.timedelta(days=days) if days else None
        return ApiKey.create(user, name, scopes=wanted, expires_at=expires_at, pk=pk)


def rename(user: User, pk: UUID, name: str) -> ApiKey:
    """Raises Http404 unless it is the user's, and KeyRefused."""
    name = _checked_name(name)
    with transaction.atomic():
        key = _locked(user, pk)
        key.name = name
        key.save(update_fields=["name"])
    return key


def revoke(user: User, pk: UUID) -> ApiKey:
    """From now on it is refused, for ever; a second time changes nothing. Raises Http404 unless it is the user's."""
    with transaction.atomic():
        key = _locked(user, pk)
        if key.revoked_at is None:
            key.revoked_at = timezone.now()
            key.save(update_fields=["revoked_at"])
    return key


def _locked(user: User, pk: UUID) -> ApiKey:
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    return key_of(user, pk)


def _standing(key: ApiKey, longest: int | None) -> Standing:
    ends_at, is_cut = end_of(key, longest)
    if key.revoked_at is not None:
        state = State.REVOKED
    elif ends_at is not None and ends_at <= timezone.now():
        state = State.EXPIRED
    else:
        state = State.LIVE
    return Standing(key, state, ends_at, is_cut)


def _live_keys_of(user: User, longest: int | None) -> QuerySet[ApiKey]:
    now = timezone.now()
    rows = keys_of(user).filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)
    return rows if longest is None else rows.filter(created_at__gt=now - datetime.timedelta(days=longest))


def _checked_name(name: str) -> str:
    name = " ".join(clean_typed(name).split())
    if len(name) > MAX_NAME_CHARS:
        numbers = {"chars": len(name), "most": MAX_NAME_CHARS}
        raise KeyRefused(_("The name has %(chars)d characters; at most %(most)d fit.") % numbers, "name")
    return name


def _checked_scopes(scopes: Sequence[str]) -> list[str]:
    for scope in scopes:
        if scope not in SCOPES:
            known = {"scope": scope[:40], "known": ", ".join(SCOPES)}
            raise KeyRefused(_("There is no scope “%(scope)s”; there are: %(known)s.") % known, "scopes")
    if not scopes:
        raise KeyRefused(str(NO_SCOPE), "scopes")
    return [scope for scope in SCOPES if scope in scopes]


def _check_days(days: int | None, longest: int | None) -> None:
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise KeyRefused(_("A key counts for 1 to %(most)d days.") % {"most": MAX_DAYS}, "days")
    if longest is not None and (days is None or days > longest):
        raise KeyRefused(
            ngettext(
                "On this site a key counts for %(days)d day at most.",
                "On this site a key counts for %(days)d days at most.",
                longest,
            )
            % {"days": longest},
            "days",
        )
