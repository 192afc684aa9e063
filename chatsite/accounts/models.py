"""Who uses the site: people, and the keys their programs use. A key is kept as a hash alone."""

from __future__ import annotations

import datetime
import hashlib
import secrets
import uuid
from collections.abc import Sequence
from typing import Any

import uuid_utils.compat
from django.contrib.auth.models import AbstractUser
from django.db import models, transaction

KEY_PREFIX = "sf_"
SCOPES = ("chat", "models")  # POST /v1/chat/completions; GET /v1/models
ZONE_CHARS = 64  # of the name of a time zone
SHOWN_CHARS = 11  # of a key, enough to tell one's own keys apart


def new_id() -> uuid.UUID:
    """A UUIDv7: sorts by creation, so that indexes stay compact. An identifier, never a secret."""
    return uuid_utils.compat.uuid7()


class User(AbstractUser):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # Of the database too: a web process of the version before makes people without them. See `time_zones`.
    time_zone = models.CharField(
        max_length=ZONE_CHARS, default="", db_default="", blank=True, help_text="Chosen; none: as the browser's."
    )
    browser_time_zone = models.CharField(
        max_length=ZONE_CHARS, default="", db_default="", blank=True, editable=False, help_text="As it was last told."
    )

    def save(self, *args: Any, **kwargs: Any) -> None:
        """In one transaction with what hears of it: no change of an account goes unrecorded."""
        with transaction.atomic():
            super().save(*args, **kwargs)


class ApiKey(models.Model):
    """A 256-bit random secret of one user; SHA-256 suffices at that entropy."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80, blank=True)
    shown = models.CharField(max_length=16, editable=False)
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    # Of the database too: a web process of the version before makes keys without it.
    scopes = models.CharField(
        max_length=200,
        default=" ".join(SCOPES),
        db_default=" ".join(SCOPES),
        help_text="What it may do: words of SCOPES, a space between them.",
    )

    class Meta:
        verbose_name = "API key"
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.shown}… {self.name}".strip()

    @staticmethod
    def digest(secret: str) -> str:
        return hashlib.sha256(secret.encode()).hexdigest()

    @property
    def scope_names(self) -> tuple[str, ...]:
        return tuple(self.scopes.split())

    @classmethod
    def create(
        cls,
        user: User,
        name: str = "",
        *,
        scopes: Sequence[str] = SCOPES,
        expires_at: datetime.datetime | None = None,
        pk: uuid.UUID | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its secret; the secret is never seen again. Who may have which is decided by `api.keys`."""
        secret = KEY_PREFIX + secrets.token_urlsafe(32)
        key = cls.objects.create(
            pk=pk or new_id(),
            user=user,
            name=name,
            shown=secret[:SHOWN_CHARS],
            sha256=cls.digest(secret),
            scopes=" ".join(scopes),
            expires_at=expires_at,
        )
        return key, secret
