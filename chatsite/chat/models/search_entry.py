"""What search looks through: one row for each message with text, and one for each title."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import Q

from chatsite.chat.models.conversation import Conversation
from chatsite.chat.models.message import Message


class SearchEntry(models.Model):
    """Written by the database's own triggers alone (see the migration), whoever writes the message or the title.

    Every word of the vector begins with its owner and its bucket, of about a thousand messages each that came one
    after the other. So a search reads nothing of other people's, and of somebody's commonest word only the newest.
    Rows go with their message or conversation by the database's own cascade, also where no model deletes them.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    conversation = models.ForeignKey(
        Conversation, on_delete=models.DO_NOTHING, db_constraint=False, related_name="search_entries"
    )
    message = models.OneToOneField(
        Message,
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="search_entry",
        help_text="None: the entry of the title.",
    )
    bucket = models.PositiveIntegerField(default=0)
    vector = SearchVectorField()

    class Meta:
        verbose_name_plural = "search entries"
        constraints = [
            models.UniqueConstraint(fields=("conversation",), condition=Q(message=None), name="one_entry_per_title")
        ]
        indexes = [
            models.Index(fields=("owner", "-bucket"), name="search_bucket"),
            # Bounded, because every search also reads what is not yet sorted into the index.
            GinIndex(fields=("vector",), name="search_words", fastupdate=True, gin_pending_list_limit=512),
        ]

    def __str__(self) -> str:
        return str(self.pk)
