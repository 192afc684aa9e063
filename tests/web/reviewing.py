"""People and conversations for tests of review, and the site's policy for them. The owner is alice in all of them."""

from __future__ import annotations

from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat.models import Attachment, Conversation, Feedback, Generation, Message
from chatsite.rules.models import SiteRules

SECRET = "xyzzy-plugh"
REASON = "Report 4711 of its owner"
PERMITTED = {"codename": "view_transcript", "content_type__app_label": "review"}


def set_policy(policy: str) -> None:
    SiteRules.objects.update_or_create(pk=1, defaults={"review_policy": policy})


def people() -> dict[str, User]:
    """The owner, a stranger, staff without the permission, staff with it, the permission without staff, a superuser."""
    permission = Permission.objects.get(**PERMITTED)
    made = {
        "alice": User.objects.create_user("alice", email="alice@example.org"),
        "bob": User.objects.create_user("bob"),
        "sam": User.objects.create_user("sam", is_staff=True),
        "rita": User.objects.create_user("rita", is_staff=True),
        "paul": User.objects.create_user("paul"),
        "root": User.objects.create_superuser("root"),
    }
    for name in ("rita", "paul"):
        made[name].user_permissions.add(permission)
    return made


def signed_in(user: User | None) -> Client:
    client = Client()
    if user is not None:
        client.force_login(user)
    return client


def turn(conversation: Conversation, asked: str, answered: str, after: Message | None = None) -> Message:
    """A question and its settled answer, which the conversation shows from now on; the answer."""
    question = Message.objects.create(conversation=conversation, role="user", parent=after, content=asked)
    answer = Message.objects.create(conversation=conversation, role="assistant", parent=question, content=answered)
    Generation.objects.create(
        user=conversation.owner, message=answer, model="m", status="done", ended_at=timezone.now()
    )
    conversation.leaf = answer
    conversation.save()
    return answer


def report(answer: Message, comment: str = "") -> Feedback:
    return Feedback.objects.create(message=answer, rating=-1, comment=comment, is_reported=True)


def partly_reported(owner: User) -> Conversation:
    """The first answer is reported; then it goes on, and an earlier branch lies beside it. All of it holds `SECRET`."""
    conversation = Conversation.objects.create(owner=owner, title=f"TITLE {SECRET}", system_prompt="INSTRUCTED")
    beside = turn(conversation, f"BESIDE {SECRET}", f"BESIDE {SECRET}")
    Feedback.objects.create(message=beside, rating=1, comment=f"BESIDE {SECRET}")
    first = turn(conversation, f"ASKED {SECRET}", f"ANSWERED {SECRET}")
    Attachment.objects.create(
        owner=owner, message=first.parent, name="NAME", text=f"FILE {SECRET}", media_type="text/plain", num_bytes=1
    )
    report(first, f"COMMENT {SECRET}")
    later = turn(conversation, f"LATER {SECRET}", f"LATER {SECRET}", after=first)
    Feedback.objects.create(message=later, rating=-1, comment=f"LATER {SECRET}")
    return conversation
