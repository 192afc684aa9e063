"""`Authorization: Bearer <key>` -> the key and its user, if it may do what is asked. Sync, called in a thread that may
use the database.

Keys are looked up by their SHA-256: 256 random bits need no slow hash, and an index lookup by hash tells a guesser
nothing about how close the guess was.
"""

from __future__ import annotations

import datetime
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from chatsite.accounts.models import KEY_PREFIX, ApiKey
from chatsite.api import keys
from chatsite.api.errors import ScopeMissing, Unauthorized

MAX_KEY_CHARS = 200
USED_AGAIN_AFTER = datetime.timedelta(minutes=1)  # `last_used_at` is written no more often


def authenticate(authorization: str | None, *, needs: str = "") -> ApiKey:
    """The valid key that the header's value carries, its user loaded; notes that it was used. It has the scope `needs`.

    Raises:
        Unauthorized: no key, or it is unknown, revoked, expired or older than keys may be, or its user is inactive.
        ScopeMissing: it is a good key, but not for this.
    """
    scheme, _, secret = (authorization or "").strip().partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise Unauthorized("No API key was sent. Send one as: Authorization: Bearer <key>.")
    key = None
    if secret.startswith(KEY_PREFIX) and len(secret) <= MAX_KEY_CHARS:
        key = ApiKey.objects.select_related("user").filter(sha256=ApiKey.digest(secret)).first()
    key = checked(key)
    _note_use(key, timezone.now())
    if needs and needs not in key.scope_names:
        raise ScopeMissing(needs, key.scope_names)
    return key


def checked(key: ApiKey | None) -> ApiKey:
    """`key` with its user, if it counts just now. Raises Unauthorized, which says why it does not."""
    if key is None or not key.user.is_active:
        raise Unauthorized("This API key is not known.")
    if key.revoked_at is not None:
        raise Unauthorized("This API key has been revoked.")
    longest = keys.longest_days(key.user)
    ends_at, is_cut = keys.end_of(key, longest)
    if ends_at is not None and ends_at <= timezone.now():
        if is_cut:
            raise Unauthorized(f"This API key is older than the {longest} days that keys count here. Make a new one.")
        raise Unauthorized("This API key has expired.")
    return key


def counts_still(key_id: UUID) -> bool:
    """Whether an answer that is being sent for that key may go on."""
    try:
        checked(ApiKey.objects.select_related("user").filter(pk=key_id).first())
    except Unauthorized:
        return False
    return True


def seconds_left(key: ApiKey) -> float | None:
    """Until the key ends by itself; None: never."""
    ends_at, _ = keys.end_of(key, keys.longest_days(key.user))
    return None if ends_at is None else max(0.0, (ends_at - timezone.now()).total_seconds())


def _note_use(key: ApiKey, now: datetime.datetime) -> None:
    stale = now - USED_AGAIN_AFTER
    if key.last_used_at is not None and key.last_used_at > stale:
        return
    rows = ApiKey.objects.filter(pk=key.pk).filter(Q(last_used_at=None) | Q(last_used_at__lte=stale))
    rows.update(last_used_at=now)  # conditional: of many parallel requests one writes
