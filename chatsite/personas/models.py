"""Personas: the settings of a conversation under a name, kept by people for themselves, or by staff for everybody."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from chatsite.accounts.models import new_id
from chatsite.chat.actions.settings import Tuning

NAME_CHARS = 60
LINE_CHARS = 160


class Persona(models.Model):
    """The settings mean what those of `Conversation` mean; empty or None is the site's or the model's own."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="personas")
    name = models.CharField(max_length=NAME_CHARS)
    line = models.CharField(max_length=LINE_CHARS, blank=True, help_text="What it is for.")
    is_shared = models.BooleanField(default=False, help_text="Everybody may begin a chat with it.")
    model = models.CharField(max_length=100, blank=True)
    system_prompt = models.TextField(blank=True)
    thinking = models.BooleanField(null=True, default=None)
    tools = models.BooleanField(default=False)
    thinking_budget = models.PositiveIntegerField(null=True, blank=True)
    temperature = models.FloatField(null=True, blank=True)
    top_p = models.FloatField(null=True, blank=True)
    max_tokens = models.PositiveIntegerField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name", "id")
        indexes = [models.Index(fields=("name",), condition=models.Q(is_shared=True), name="persona_shared")]
        constraints = [models.UniqueConstraint(fields=("owner", "name"), name="one_persona_per_name")]

    def __str__(self) -> str:
        return str(self.pk)  # name and instructions are the owner's own

    @property
    def tuning(self) -> Tuning:
        """A copy of its settings, for a conversation that begins."""
        return {name: getattr(self, name) for name in Tuning.__annotations__}  # type: ignore[return-value]
