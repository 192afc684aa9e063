"""What allauth asks about this site: whether a stranger may open an account. Nothing else differs from its defaults."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """By the operator's setting; a closed site answers with its own page, and people are added by an admin."""
        return bool(settings.SMOLFLEET.sign_up_open)
