"""Who opened whose conversation, when, from where and why; and what became of what owners reported.

The first is written once, before the text is shown, and never changed. Its rows outlive what they tell of: account and
conversation may go, then their columns are emptied and the names written beside them stay. A trigger in Postgres (first
migration) refuses every other change, whoever asks.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.conf import settings
from django.db import models

from chatsite.accounts.models import new_id
from chatsite.chat.models import Feedback

REASON_CHARS = 500
NOTE_CHARS = 1_000


class AccessIsFinal(Exception):
    """Somebody tried to change or delete an access record."""


class AccessEvents(models.QuerySet["AccessEvent"]):
    """Reads and creates; the database refuses what is refused here, and would do so alone."""

    def update(self, **kwargs: Any) -> NoReturn:
        raise AccessIsFinal("An access record is never changed.")

    def delete(self) -> NoReturn:
        raise AccessIsFinal("An access record is never deleted.")


class AccessEvent(models.Model):
    """`actor` opened a conversation of `subject`, its owner then."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="transcripts_opened"
    )
    actor_name = models.CharField(max_length=150)
    subject = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="transcripts_seen_by_others"
    )
    conversation = models.ForeignKey(
        "chat.Conversation", null=True, on_delete=models.SET_NULL, related_name="access_events"
    )
    conversation_key = models.CharField("conversation id", max_length=36, db_index=True)
    reason = models.CharField(max_length=REASON_CHARS)
    ip = models.GenericIPAddressField(null=True)
    at = models.DateTimeField(auto_now_add=True)

    objects = AccessEvents.as_manager()

    class Meta:
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = [("view_transcript", "Can open conversations of others, each time with a reason")]
        indexes = [models.Index(fields=("subject", "-at"))]

    def __str__(self) -> str:
        return f"{self.actor_name} opened {self.conversation_key}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AccessIsFinal("An access record is never changed.")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AccessIsFinal("An access record is never deleted.")


class ReportOutcome(models.Model):
    """A report is handled. Its owner sees all of this; it goes when the report is taken back."""

    feedback = models.OneToOneField(Feedback, on_delete=models.CASCADE, related_name="outcome")
    handled_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    note = models.CharField(max_length=NOTE_CHARS, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"outcome of report {self.feedback_id}"
