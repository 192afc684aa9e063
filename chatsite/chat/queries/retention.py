"""How long a conversation stays, by its owner's rules, and the sentence that warns of its end.

What takes it away is `privacy.retention`; the days are decided in `rules`. Each new message begins the time anew.
Synchronous; called by the views.
"""

from __future__ import annotations

import datetime

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation
from chatsite.rules import effective

WARNED_DAYS = 7  # with fewer left its owner is told
IN_USE_HOURS = 24  # of a conversation gone on with since then nobody is warned on its page


def days_left(owner: User, conversation: Conversation) -> int | None:
    """Whole days until its owner's rule takes it, 0 within a day or when it is due; None: it stays."""
    days = effective.rules_of(owner).retention_days
    if days is None:
        return None
    left = conversation.updated_at + datetime.timedelta(days=days) - timezone.now()
    return max(0, left.days)


def warning(owner: User, conversation: Conversation) -> str:
    """One sentence when it has fewer than WARNED_DAYS left, else nothing."""
    left = days_left(owner, conversation)
    if left is None or left >= WARNED_DAYS:
        return ""
    if not left:
        return _("This chat will be deleted within a day, unless it goes on.")
    return (
        ngettext(
            "This chat will be deleted in %d day, unless it goes on.",
            "This chat will be deleted in %d days, unless it goes on.",
            left,
        )
        % left
    )


def warning_on_page(owner: User, conversation: Conversation) -> str:
    """The same, but nothing for a conversation in use: who writes needs no warning, and its page no more queries."""
    if timezone.now() - conversation.updated_at < datetime.timedelta(hours=IN_USE_HOURS):
        return ""
    return warning(owner, conversation)


def rule_in_words(days: int | None) -> str:
    """What holds for all conversations of a person."""
    if days is None:
        return _("Your chats stay until you delete them.")
    return (
        ngettext(
            "Your chats are deleted %d day after their last message.",
            "Your chats are deleted %d days after their last message.",
            days,
        )
        % days
    )
