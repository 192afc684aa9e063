"""Everything the site keeps of a person, as one zip to take away: conversations as `transfer` writes them, and a file
each for what else there is.

Never in it: secrets and their hashes (passwords, keys, second factors, session keys), and what would tell of others
more than the person could see anyway. `PARTS` and `LEFT_OUT` together name every model that refers to a person. Reads
rows, writes none; called by the view, whose stream asks for one file after the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatsite.accounts.models import User
from chatsite.audit.models import AuditEntry
from chatsite.chat.models import Attachment, Feedback, Generation, QueuedMessage, Tag
from chatsite.personas.models import Persona
from chatsite.prompts.models import PromptTemplate
from chatsite.review.models import AccessEvent
from chatsite.rules import effective
from chatsite.rules.models import UserRules
from chatsite.sharing.models import Share
from chatsite.transfer import records, writing
from chatsite.usage.models import UsageDay

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """One file of `account/`: what it is, for the README; the models it tells of; how it is read."""

    name: str
    about: str | Promise
    models: tuple[str, ...]
    read: Callable[[User, str], Rows | dict[str, Any]]  # the person, and how addresses on this site begin

    @property
    def path(self) -> str:
        return f"{records.ACCOUNT_FOLDER}{self.name}.json"


def pieces(user: User, site_address: str) -> AsyncIterator[bytes]:
    """The zip, piece by piece. The README speaks the language of whoever asks now."""
    readme = _readme(user).encode()
    files: dict[str, Callable[[], bytes]] = {"README.txt": lambda: readme}
    files |= {part.path: partial(_file, part, user, site_address) for part in PARTS}
    return writing.zip_of_all(user, files)


def file_name(user: User) -> str:
    return f"{user.get_username()} {timezone.localdate():%Y-%m-%d}.zip"


def _file(part: Part, user: User, site_address: str) -> bytes:
    return msgspec.json.format(msgspec.json.encode(part.read(user, site_address)), indent=2) + b"\n"


def _readme(user: User) -> str:
    lines = [
        _("What this site keeps of %(name)s, as of %(date)s.")
        % {"name": user.get_username(), "date": f"{timezone.localtime():%Y-%m-%d %H:%M %Z}"},
        "",
        "json/",
        "    "
        + _("Your conversations with all branches, the text of their files, tags and ratings. Import reads this."),
        "md/",
        "    " + _("The same conversations to be read, each as it was last shown."),
    ]
    for part in PARTS:
        lines += [part.path, f"    {part.about}"]
    lines += [
        "",
        _("Left out are secrets (password, API keys, second factors), and answers that were still being written."),
        _("Temporary chats are kept nowhere."),
    ]
    return "\n".join(lines) + "\n"


def _profile(user: User, _site: str) -> dict[str, Any]:
    profile = {
        name: getattr(user, name)
        for name in ("id", "username", "email", "first_name", "last_name", "date_joined", "last_login", "is_staff")
    }
    addresses = EmailAddress.objects.filter(user=user).order_by("pk").values("email", "verified", "primary")
    factors = Authenticator.objects.filter(user=user).order_by("pk").values("type", "created_at", "last_used_at")
    return profile | {
        "groups": list(user.groups.order_by("name").values_list("name", flat=True)),
        "email_addresses": list(addresses),
        "second_factors": list(factors),
        "outside_accounts": _outside_accounts(user),
        "own_rules": UserRules.objects.filter(user=user).values("tokens_per_day", "tokens_per_month").first(),
        "retention_days": effective.rules_of(user).retention_days,
    }


def _outside_accounts(user: User) -> Rows:
    rows = SocialAccount.objects.filter(user=user)
    return list(rows.order_by("pk").values("provider", "uid", "date_joined", "last_login", "extra_data"))


def _drafts(user: User, _site: str) -> dict[str, Any]:
    files = Attachment.objects.filter(owner=user, message=None).order_by("pk")
    queued = QueuedMessage.objects.filter(conversation__owner=user).order_by("pk")
    return {
        "files": list(files.values("name", "media_type", "text", "num_bytes", "created_at", "draft_of", "queued")),
        "queued_messages": list(queued.values("id", "conversation", "content", "refusal", "created_at")),
    }


def _feedback(user: User, _site: str) -> Rows:
    rows = Feedback.objects.filter(message__conversation__owner=user).order_by("pk").select_related("outcome")
    found = []
    for row in rows.select_related("message"):
        outcome = getattr(row, "outcome", None)
        told: dict[str, Any] = {name: getattr(row, name) for name in ("rating", "reason", "comment", "is_reported")}
        told |= {"message": row.message_id, "conversation": row.message.conversation_id, "created_at": row.created_at}
        if outcome is not None:
            told["outcome"] = {"at": outcome.at, "note": outcome.note}
        found.append(told)
    return found


def _links(user: User, site_address: str) -> Rows:
    names = ("id", "conversation", "title", "scope", "has_thoughts", "created_at", "updated_at", "expires_at")
    rows = Share.objects.filter(owner=user).order_by("pk").values("token", "revoked_at", "snapshot", *names)
    return [{"address": site_address + reverse("sharing:shown", args=(row.pop("token"),)), **row} for row in rows]


def _requests(user: User, _site: str) -> Rows:
    names = ("id", "source", "model", "status", "finish_reason", "error_code", "created_at", "ended_at", "api_key")
    numbers = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "decode_seconds")
    rows = Generation.objects.filter(user=user, message=None).order_by("pk")
    return list(rows.values(*names, *numbers))


def _activity(user: User, _site: str) -> Rows:
    """Of a deed that concerned somebody else the person learns here what they did, and not more about the other."""
    found = []
    for row in AuditEntry.objects.filter(Q(actor=user) | Q(subject=user)).order_by("pk"):
        is_own = row.actor_id == user.pk
        told: dict[str, Any] = {"at": row.at, "action": row.action, "by": row.actor_name or None}
        if is_own:
            told["ip"] = row.ip
        if row.subject_id in (None, user.pk):
            told |= {"target": row.target, "detail": row.detail}
        found.append(told)
    return found


def _values(rows: Any, *names: str) -> Callable[[User, str], Rows]:
    """A part that is just columns of the person's rows. `rows` finds them."""
    return lambda user, _site: list(rows(user).order_by("pk").values(*names))


PARTS = (
    Part(
        "profile",
        gettext_lazy(
            "Your account: names, e-mail addresses, groups, second factors, other sign-ins, and your own rules."
        ),
        ("account.EmailAddress", "mfa.Authenticator", "rules.UserRules", "socialaccount.SocialAccount"),
        _profile,
    ),
    Part("drafts", gettext_lazy("Files and messages that wait to be sent."), ("chat.Attachment",), _drafts),
    Part(
        "prompts",
        gettext_lazy("Your prompts."),
        ("prompts.PromptTemplate",),
        _values(
            lambda user: PromptTemplate.objects.filter(owner=user), "name", "title", "text", "is_shared", "updated_at"
        ),
    ),
    Part(
        "personas",
        gettext_lazy("Your personas."),
        ("personas.Persona",),
        _values(
            lambda user: Persona.objects.filter(owner=user),
            *("name", "line", "is_shared", "model", "system_prompt", "thinking", "tools", "thinking_budget"),
            *("temperature", "top_p", "max_tokens", "updated_at"),
        ),
    ),
    Part(
        "tags",
        gettext_lazy("Your tags."),
        ("chat.Tag",),
        _values(lambda user: Tag.objects.filter(owner=user), "name"),
    ),
    Part("feedback", gettext_lazy("What you thought of answers, and what came of your reports."), (), _feedback),
    Part(
        "links",
        gettext_lazy("Your links, with their addresses and what they show or showed."),
        ("sharing.Share",),
        _links,
    ),
    Part(
        "keys",
        gettext_lazy("Your API keys, without their secrets."),
        ("accounts.ApiKey",),
        _values(
            lambda user: user.api_keys,
            *("id", "name", "shown", "scopes", "created_at", "last_used_at", "expires_at", "revoked_at"),
        ),
    ),
    Part(
        "sessions",
        gettext_lazy("Where you are signed in: address, browser, when it was last seen."),
        ("usersessions.UserSession",),
        _values(lambda user: UserSession.objects.filter(user=user), "ip", "user_agent", "created_at", "last_seen_at"),
    ),
    Part(
        "usage",
        gettext_lazy("What you used, by day, model and API key."),
        ("usage.UsageDay",),
        _values(
            lambda user: UsageDay.objects.filter(user=user),
            *("day", "model", "source", "api_key", "num_answers", "num_failed", "num_stopped", "prompt_tokens"),
            *("cached_tokens", "completion_tokens", "charged_tokens", "decode_seconds"),
        ),
    ),
    Part(
        "requests",
        gettext_lazy(
            "Answers outside of conversations (API, titles, temporary chats): when and how long, without a text."
        ),
        ("chat.Generation",),
        _requests,
    ),
    Part(
        "activity",
        gettext_lazy("What was recorded about your account: sign-ins, changes, by whom."),
        ("audit.AuditEntry",),
        _activity,
    ),
    Part(
        "opened",
        gettext_lazy("Who opened your conversations, when and why."),
        ("review.AccessEvent",),
        _values(
            lambda user: AccessEvent.objects.filter(subject=user), "at", "actor_name", "conversation_key", "reason"
        ),
    ),
)

LEFT_OUT = {
    "chat.Conversation": "the conversations are the files in json/ and md/",
    "chat.SearchEntry": "the words of the conversations once more, sorted for finding them",
    "transfer.Origin": "check sums by which an import knows what it brought in before",
    "usage.OwnDay": "the sums of usage.json once more, by the days of one's own time zone, for the quota",
    "admin.LogEntry": "what staff did in the admin; the same deeds are in activity.json",
    "review.ReportOutcome": "what reviewers made of others' reports; those of one's own are in feedback.json",
}
