"""What the chat keeps: conversations, their messages (a tree), and the generation that writes each answer.

Rows are read through `access` and written through `actions` and `tasks` alone. Text is cleaned of what Postgres cannot
hold (NUL, lone surrogates) where it enters.
"""

from __future__ import annotations

import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q

from chatsite.accounts.models import new_id

TITLE_CHARS = 120


class Conversation(models.Model):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="conversations")
    title = models.CharField(max_length=TITLE_CHARS, blank=True)
    is_title_own = models.BooleanField(default=False, help_text="The owner named it; nothing else renames it.")
    model = models.CharField(max_length=100, blank=True, help_text="Catalog name; empty: the site's default.")
    system_prompt = models.TextField(blank=True)
    thinking = models.BooleanField(null=True, default=None, help_text="Unknown: as the model does by default.")
    prompt_date = models.DateField(default=datetime.date.today, help_text="What the model is told is today.")
    leaf = models.ForeignKey(
        "Message",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="End of the shown path.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now_add=True, db_index=True, help_text="Last message.")

    class Meta:
        ordering = ("-updated_at",)
        indexes = [models.Index(fields=("owner", "-updated_at"))]

    def __str__(self) -> str:
        return str(self.pk)  # a title quotes the owner, and this reaches logs and tracebacks


class Message(models.Model):
    class Role(models.TextChoices):
        USER = "user"
        ASSISTANT = "assistant"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages")
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="children")
    role = models.CharField(max_length=10, choices=Role.choices)
    content = models.TextField(blank=True)
    reasoning = models.TextField(blank=True, help_text="What the model thought; never shown to it again.")
    idempotency_key = models.UUIDField(
        null=True, blank=True, editable=False, help_text="Made by the client for one press of Send."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)
        constraints = [
            models.UniqueConstraint(
                fields=("conversation", "idempotency_key"),
                condition=Q(idempotency_key__isnull=False),
                name="one_message_per_press_of_send",
            )
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.pk}"


class Generation(models.Model):
    """The answering of one message. `active` moves to exactly one end, once; only `tasks.record` and the sweeper do it.

    A generation of `/v1` has no message: its request is kept here until it ends, its answer nowhere.
    """

    class Status(models.TextChoices):
        ACTIVE = "active"
        DONE = "done"
        STOPPED = "stopped"
        FAILED = "failed"

    class Source(models.TextChoices):
        CHAT = "chat"
        API = "api"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="generations")
    message = models.OneToOneField(Message, null=True, blank=True, on_delete=models.CASCADE, related_name="generation")
    source = models.CharField(max_length=8, choices=Source.choices, default=Source.CHAT)
    model = models.CharField(max_length=100)
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.ACTIVE)
    stop_requested = models.BooleanField(default=False)
    request = models.TextField(blank=True, editable=False, help_text="GenerationRequest as JSON, while active.")
    finish_reason = models.CharField(max_length=16, blank=True)
    # Of the database too: a web process of the version before makes rows without it.
    cut = models.CharField(
        max_length=16, blank=True, default="", db_default="", help_text="The limit behind the finish reason length."
    )
    error_code = models.CharField(max_length=64, blank=True)
    error_message = models.TextField(blank=True)
    is_retryable = models.BooleanField(default=False)
    worker = models.CharField(max_length=200, blank=True)
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0)
    decode_seconds = models.FloatField(default=0.0)
    content_sha256 = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("created_at",), condition=Q(status="active"), name="generation_active"),
            models.Index(fields=("user", "-created_at")),
            models.Index(fields=("ended_at",)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status="active", ended_at__isnull=True) | (~Q(status="active") & Q(ended_at__isnull=False)),
                name="generation_ended_has_time",
            )
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.status}"

    @property
    def is_active(self) -> bool:
        return self.status == self.Status.ACTIVE
