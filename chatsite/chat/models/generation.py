"""The answering of one message."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from chatsite.accounts.models import ApiKey, new_id
from chatsite.chat.models.conversation import Conversation
from chatsite.chat.models.message import Message


class Generation(models.Model):
    """The answering of one message. `active` moves to exactly one end, once; only `tasks.record` and the sweeper do it.

    A generation of `/v1`, of a title or of a temporary chat has no message: its request is kept here until it ends, its
    answer nowhere. That of a title knows the conversation it names.
    """

    class Status(models.TextChoices):
        ACTIVE = "active"
        DONE = "done"
        STOPPED = "stopped"
        FAILED = "failed"

    class Source(models.TextChoices):
        CHAT = "chat"
        API = "api"
        TITLE = "title"
        TEMPORARY = "temporary"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="generations")
    message = models.OneToOneField(Message, null=True, blank=True, on_delete=models.CASCADE, related_name="generation")
    conversation = models.ForeignKey(
        Conversation, null=True, blank=True, on_delete=models.CASCADE, related_name="title_generations"
    )
    api_key = models.ForeignKey(
        ApiKey, null=True, blank=True, on_delete=models.SET_NULL, related_name="generations", help_text="That asked."
    )
    source = models.CharField(max_length=9, choices=Source.choices, default=Source.CHAT)
    model = models.CharField(max_length=100)
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.ACTIVE)
    stop_requested = models.BooleanField(default=False)
    request = models.TextField(blank=True, editable=False, help_text="GenerationRequest as JSON, while active.")
    reserved_tokens = models.PositiveIntegerField(
        default=0, db_default=0, help_text="What it may cost at most, held back from quotas while active."
    )
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
    # Messages at the start of the path, a system prompt not counted, that did not fit the model's context.
    num_dropped = models.PositiveIntegerField(default=0, db_default=0)
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

    @property
    def is_unfinished(self) -> bool:
        """Ended, but not by the model's own decision: there is more to say. A loop is not worth going on with."""
        if self.status in (self.Status.STOPPED, self.Status.FAILED):
            return True
        return self.status == self.Status.DONE and self.finish_reason == "length" and self.cut != "loop"
