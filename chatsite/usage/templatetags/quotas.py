"""Quotas for templates of any app: a warning where few tokens are left, and the words for times and numbers."""

from __future__ import annotations

from typing import Any

from django import template

from chatsite.accounts.models import User
from chatsite.usage import quotas, words
from chatsite.usage.calendar import Window
from chatsite.usage.quotas import Balance

register = template.Library()


@register.simple_tag(takes_context=True)
def running_low(context: dict[str, Any]) -> Balance | None:
    """The balance of whoever is signed in of which less than a tenth is left."""
    user = context.get("user")
    return quotas.running_low(user) if isinstance(user, User) else None


@register.filter
def when(window: Window) -> str:
    """ "at 00:00", "on December 1" """
    return words.when(window)


@register.filter
def grouped(number: int) -> str:
    return words.grouped(number)
