"""Secrets that must be readable again (of second factors), sealed with the site's key before Postgres has them.

Who sees the database alone, or a copy of it, can make no codes. `SECRET_KEY_FALLBACKS` open what older keys sealed.
"""

from __future__ import annotations

import base64
import hashlib
import secrets

import structlog
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

log = structlog.get_logger(__name__)

PURPOSE = b"smolfleet second factor"


def seal(text: str) -> str:
    """`text`, sealed with the newest key."""
    return _keys().encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """What was sealed. Where no key of ours opens it, a secret that nobody knows: an empty one would have codes too."""
    try:
        return _keys().decrypt(sealed.encode()).decode()
    except InvalidToken:
        log.error("a second factor was sealed with a key that is gone")
        return base64.b32encode(secrets.token_bytes(20)).decode()


def _keys() -> MultiFernet:
    return MultiFernet([Fernet(_derived(key)) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])


def _derived(key: str) -> bytes:
    """Not the key itself: it signs other things. A site's key is long and random, so that one hash is enough."""
    return base64.urlsafe_b64encode(hashlib.blake2b(key.encode(), key=PURPOSE, digest_size=32).digest())
