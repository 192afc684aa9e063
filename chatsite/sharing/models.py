"""A link to a conversation as it was at one moment.

What it shows is a copy: later messages stay private until its owner says otherwise.
"""

from __future__ import annotations

import secrets

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import new_id
from chatsite.chat.models import TITLE_CHARS, Conversation

TOKEN_BYTES = 24  # 192 random bits: nobody guesses one, so it may lie here as it is and be shown to its owner again


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


class Share(models.Model):
    """`snapshot` is what `snapshots.of` made of the shown path; nothing else of the conversation is ever shown."""

    class Scope(models.TextChoices):
        ME = "me", _("Only me")
        SIGNED_IN = "signed_in", _("People signed in here")
        ANYONE = "anyone", _("Anyone with the link")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="shares")
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="shares")
    token = models.CharField(max_length=64, unique=True, default=new_token, editable=False)
    scope = models.CharField(max_length=9, choices=Scope.choices)
    title = models.CharField(max_length=TITLE_CHARS, blank=True)
    snapshot = models.JSONField(editable=False)
    has_thoughts = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(help_text="When the snapshot was taken.")
    expires_at = models.DateTimeField(null=True, blank=True, help_text="None: never.")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=("conversation",), condition=Q(revoked_at=None), name="one_standing_link_per_conversation"
            )
        ]

    def __str__(self) -> str:
        return str(self.pk)  # neither its title nor its token belongs into a log

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()
