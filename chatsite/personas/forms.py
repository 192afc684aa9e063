"""What is typed to keep a persona: its name, and the settings that a conversation has too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import User
from chatsite.chat.views.forms import TuningForm
from chatsite.personas.models import LINE_CHARS, NAME_CHARS, Persona
from inference.messages.cards import ModelCard


class PersonaForm(TuningForm):
    """Filled with what `persona` has. Limits of settings are the site's own, in `tuning`."""

    name = forms.CharField(label=_("Name"), max_length=NAME_CHARS)
    line = forms.CharField(label=_("What it is for, in one line"), max_length=LINE_CHARS, required=False)
    is_shared = forms.BooleanField(label=_("Share it with everybody"), required=False)

    field_order = ("name", "line", "system_prompt", "model", "thinking", "tools")

    def __init__(self, *args: Any, persona: Persona, user: User, models: Sequence[ModelCard], **kwargs: Any) -> None:
        words = {True: "on", False: "off", None: ""}
        kept: dict[str, Any] = {**persona.tuning, "thinking": words[persona.thinking], "tools": words[persona.tools]}
        kept |= {"name": persona.name, "line": persona.line, "is_shared": persona.is_shared}
        kwargs["initial"] = kept
        super().__init__(*args, **kwargs)
        titles = {"": gettext("Site's choice")} | {card.name: card.title for card in models}
        if persona.model and persona.model not in titles:
            titles[persona.model] = gettext("%(name)s (away)") % {"name": persona.model}
        self.fields["model"].widget = forms.Select(choices=list(titles.items()))
        self.fields["system_prompt"].widget = forms.Textarea(attrs={"rows": 8})
        for name in ("thinking_budget", "temperature", "top_p", "max_tokens"):
            self.fields[name].help_text = _("Empty: the model’s own.")
        self.fields["tools"].widget = forms.Select(choices=[("off", gettext("Off")), ("on", gettext("On"))])
        if not settings.SMOLFLEET.tools:
            del self.fields["tools"]
        if not user.is_staff:
            del self.fields["is_shared"]

    def changed(self) -> dict[str, Any]:
        """What was sent, checked for its kind alone. A box that is not ticked sends nothing, and says no."""
        told: dict[str, Any] = {
            name: self.cleaned_data[name] for name in ("name", "line", "is_shared") if name in self.fields
        }
        return {**told, **self.tuning()}
