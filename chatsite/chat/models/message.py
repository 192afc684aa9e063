"""One message of a conversation's tree, its files and the opinion of it, and the messages that wait for their turn."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import new_id
from chatsite.chat.models.conversation import Conversation

FILE_NAME_CHARS = 200
REASON_CHARS = 1_000


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
    calls = models.JSONField(
        null=True, blank=True, editable=False, help_text="Of tools, by an answer: see `calls.Call`. None: no calls."
    )
    calling_since = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Its calls are being made, and an answer follows."
    )
    idempotency_key = models.UUIDField(
        null=True, blank=True, editable=False, help_text="Made by the client for one press of Send."
    )
    edited_at = models.DateTimeField(
        null=True, blank=True, help_text="An answer whose text a person has changed; a question gets a sibling instead."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)
        indexes = [
            models.Index(fields=("conversation",), condition=Q(calling_since__isnull=False), name="message_calling")
        ]
        constraints = [
            models.UniqueConstraint(
                fields=("conversation", "idempotency_key"),
                condition=Q(idempotency_key__isnull=False),
                name="one_message_per_press_of_send",
            )
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.pk}"


class Attachment(models.Model):
    """A file's text, read at its upload; the model sees it in front of the message. No message yet: a draft's."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="attachments")
    message = models.ForeignKey(Message, null=True, blank=True, on_delete=models.CASCADE, related_name="attachments")
    draft_of = models.ForeignKey(
        Conversation,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="draft_files",
        help_text="Where it waits to be sent; none: in a conversation that has not begun.",
    )
    queued = models.ForeignKey(
        "QueuedMessage",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="attachments",
        help_text="The waiting message that will take it along.",
    )
    name = models.CharField(max_length=FILE_NAME_CHARS)
    media_type = models.CharField(max_length=100)
    text = models.TextField()
    num_bytes = models.PositiveIntegerField(help_text="Of the file as it came.")
    num_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Unknown while no model was there.")
    codec = models.CharField(
        max_length=20, default="", db_default="", blank=True, help_text="In which it was read, if that is a guess."
    )
    doubt = models.CharField(
        max_length=10, default="", db_default="", blank=True, help_text="Why the text may be wrong, as a reading's."
    )
    original = models.BinaryField(null=True, help_text="Of a draft whose encoding is a guess, to be read in another.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)
        indexes = [models.Index(fields=("created_at",), condition=Q(message=None), name="attachment_unsent")]

    def __str__(self) -> str:
        return str(self.pk)


class Feedback(models.Model):
    """What its reader thought of an answer. One opinion per answer; changing one's mind replaces it."""

    class Rating(models.IntegerChoices):
        GOOD = 1
        BAD = -1

    class Reason(models.TextChoices):
        WRONG = "wrong", _("Not correct")
        UNHELPFUL = "unhelpful", _("Not what was asked")
        STYLE = "style", _("Tone or length")
        UNSAFE = "unsafe", _("Harmful or offensive")
        BROKEN = "broken", _("Broken off or garbled")
        OTHER = "other", _("Something else")

    message = models.OneToOneField(Message, on_delete=models.CASCADE, related_name="feedback")
    rating = models.SmallIntegerField(choices=Rating.choices)
    reason = models.CharField(max_length=12, choices=Reason.choices, blank=True)
    comment = models.CharField(max_length=REASON_CHARS, blank=True)
    is_reported = models.BooleanField(
        default=False, db_default=False, help_text="Its owner wants reviewers to see the answer and what led to it."
    )
    created_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("-created_at",)
        verbose_name_plural = "feedback"
        indexes = [models.Index(fields=("-created_at",), condition=Q(is_reported=True), name="feedback_reported")]
        constraints = [
            models.CheckConstraint(condition=Q(is_reported=False) | Q(rating=-1), name="feedback_reported_is_bad")
        ]

    def __str__(self) -> str:
        return f"{self.rating} on {self.message_id}"


class QueuedMessage(models.Model):
    """A message typed while an answer was being written. It is sent when that answer is done, the eldest first.

    `is_next` goes before the eldest, and also when the answer before it was stopped or failed. With a `refusal` it
    waits: until `try_again_at`, or, without that, for a person.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="queued")
    content = models.TextField()
    idempotency_key = models.UUIDField(null=True, blank=True, editable=False)
    is_next = models.BooleanField(default=False, db_default=False)
    refusal = models.TextField(blank=True, default="", db_default="", help_text="Why it could not be sent.")
    try_again_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-is_next", "id")
        constraints = [
            models.UniqueConstraint(
                fields=("conversation", "idempotency_key"),
                condition=Q(idempotency_key__isnull=False),
                name="one_queued_message_per_press_of_send",
            )
        ]

    def __str__(self) -> str:
        return str(self.pk)
