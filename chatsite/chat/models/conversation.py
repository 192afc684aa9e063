"""A conversation: who owns it, how its answers are to be written, and which path of its tree is shown."""

from __future__ import annotations

import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q

from chatsite.accounts.models import new_id

TITLE_CHARS = 120
TAG_CHARS = 40


class Tag(models.Model):
    """A word of its owner's under which conversations are found again."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tags")
    name = models.CharField(max_length=TAG_CHARS)

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=("owner", "name"), name="one_tag_per_name")]

    def __str__(self) -> str:
        return str(self.pk)  # the word is the owner's own, as a title is


class Conversation(models.Model):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="conversations")
    title = models.CharField(max_length=TITLE_CHARS, blank=True)
    is_title_own = models.BooleanField(default=False, help_text="The owner named it; nothing else renames it.")
    model = models.CharField(max_length=100, blank=True, help_text="Catalog name; empty: the site's default.")
    system_prompt = models.TextField(blank=True)
    thinking = models.BooleanField(null=True, default=None, help_text="Unknown: as the model does by default.")
    thinking_budget = models.PositiveIntegerField(
        null=True, blank=True, help_text="Tokens of thought; none: unbounded."
    )
    tools = models.BooleanField(default=False, db_default=False, help_text="Its answers may call the site's tools.")
    temperature = models.FloatField(null=True, blank=True, help_text="None: the model's own, as for the next two.")
    top_p = models.FloatField(null=True, blank=True)
    max_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Of one answer.")
    prompt_date = models.DateField(default=datetime.date.today, help_text="What the model is told is today.")
    leaf = models.ForeignKey(
        "Message",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="End of the shown path.",
    )
    tags = models.ManyToManyField(Tag, blank=True, related_name="conversations")
    pinned_at = models.DateTimeField(null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True, help_text="Out of the list, still found by search.")
    is_unread = models.BooleanField(
        default=False, db_default=False, help_text="An answer ended since it was looked at."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now_add=True, db_index=True, help_text="Last message.")

    class Meta:
        ordering = ("-updated_at",)
        indexes = [
            models.Index(fields=("owner", "-updated_at")),
            models.Index(
                fields=("owner", "-pinned_at"), condition=Q(pinned_at__isnull=False), name="conversation_pinned"
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)  # a title quotes the owner, and this reaches logs and tracebacks
