"""Where imported conversations came from, so that the same file twice adds nothing."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from chatsite.chat.models import Conversation


class Origin(models.Model):
    """`digest` is of all that was read of the conversation in the file, its id there included."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    conversation = models.OneToOneField(Conversation, on_delete=models.CASCADE, related_name="origin")
    digest = models.CharField(max_length=64)
    imported_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=("owner", "digest"), name="one_import_of_the_same")]

    def __str__(self) -> str:
        return str(self.pk)
