"""Prompts that people keep for themselves, or staff for everybody, under a name that the "/" menu knows."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import new_id

NAME_CHARS = 40
TITLE_CHARS = 120

valid_name = RegexValidator(r"\A[a-z0-9][a-z0-9_-]*\Z", _("Small letters, digits, - and _ alone, without the slash."))


class PromptTemplate(models.Model):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="prompt_templates")
    name = models.CharField(max_length=NAME_CHARS, validators=[valid_name])
    title = models.CharField(max_length=TITLE_CHARS, blank=True)
    text = models.TextField()
    is_shared = models.BooleanField(default=False, help_text="Everybody finds it in their menu.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name", "id")
        indexes = [models.Index(fields=("name",), condition=models.Q(is_shared=True), name="prompt_shared")]
        constraints = [models.UniqueConstraint(fields=("owner", "name"), name="one_prompt_per_name")]

    def __str__(self) -> str:
        return str(self.pk)  # name and text are the owner's own
