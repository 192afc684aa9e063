"""The people of the walk, and one of them who has written something in every place that the site keeps.

Each text of hers is a word of its own, `MARK` with the place's name, so that an answer to somebody else that has one in
it says what leaked. What is no text of hers but secret all the same (tokens, keys, her address) stands in `Told`.
"""

from __future__ import annotations

import datetime
import re
import uuid
from dataclasses import dataclass
from typing import Any

import redis as redis_py
from allauth.account.internal.flows.login import record_authentication
from allauth.account.models import EmailAddress
from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.http import HttpRequest
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.audit import log as audit
from chatsite.audit.models import Action
from chatsite.chat.actions import attachments, feedback, organize, queue, retry, send, temporary
from chatsite.chat.generation import record, tool_calls
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.personas.models import Persona
from chatsite.prompts.models import PromptTemplate
from chatsite.review import actions as review
from chatsite.review import reports
from chatsite.rules.models import SiteRules
from chatsite.sharing import actions as sharing
from chatsite.sharing.models import Share
from chatsite.usage.models import UsageDay
from inference.messages.generation import FinishReason
from tests.web.chat_worker import MODEL, StepWorker

VISITORS = ("stranger", "other", "reviewer", "operator", "auditor", "staff", "helpdesk", "admin", "owner")
RIGHTS = {
    "reviewer": ("view_transcript",),
    "operator": ("view_fleet", "view_analytics"),
    "auditor": ("view_auditentry",),
    "helpdesk": ("view_user", "change_user"),
}
STAFF = ("staff", "helpdesk", "admin")
PHONE = "XQSECRETOFHERPHONEXQSECRETOFHERP"  # of a second factor
PASSWORD = "correct horse 7"
WORKER = "worker-of-the-walk"
ADDRESS, BROWSER = "203.0.113.77", "Xq7zbrowser9/1.0"
MARK = "xq7z"
_PLANTED = re.compile(rf"{MARK}([a-z]+)9", re.IGNORECASE)


def plant(place: str) -> str:
    """The owner's word for this place."""
    return f"{MARK}{place}9"


@dataclass
class World:
    people: dict[str, User]
    cookies: dict[str, str]  # of each visitor's session
    ids: dict[str, Any]  # what stands in addresses, by the name of the argument; and more, by other names
    secrets: dict[str, str]  # of the owner that are no words of hers: what it is, and its text

    def found_in(self, text: str) -> set[str]:
        """The places whose secrets stand in this text."""
        found = {place.lower() for place in _PLANTED.findall(text)}
        return found | {name for name, secret in self.secrets.items() if secret in text}

    def own_of(self, visitor: str) -> set[str]:
        """What the rows of this visitor have in them, one or the other."""
        own = {str(self.people[visitor].pk)} if visitor in self.people else set()
        names = {"other": ("others_conversation", "others_message"), "owner": ("conversation_id", "busy", "message_id")}
        own |= {str(self.ids[name]) for name in names.get(visitor, ())}
        return own | {MARK} if visitor == "owner" else own


def build(redis: redis_py.Redis) -> World:
    """Commits all of it. Wants the database and Redis empty, and a site on which `MODEL` is the default."""
    SiteRules.objects.update_or_create(pk=1, defaults={"review_policy": "reason"})
    people = _people()
    worker = StepWorker(redis, settings.INFERENCE, name=WORKER)
    worker.announce()
    world = World(people, {}, {}, {})
    _conversations(world, worker)
    _library(world)
    _looked_at(world)
    _account(world)
    _running(world, worker)
    _of_the_other(world, worker)
    _sessions(world)
    _rows(world)
    return world


def _people() -> dict[str, User]:
    names = {"owner": plant("name")}
    people = {}
    for visitor in VISITORS[1:]:
        user = User.objects.create_user(
            names.get(visitor, visitor),
            email=f"{plant('mail') if visitor == 'owner' else visitor}@example.org",
            password=PASSWORD,
            is_staff=visitor in STAFF,
            is_superuser=visitor == "admin",
        )
        user.user_permissions.add(*Permission.objects.filter(codename__in=RIGHTS.get(visitor, ())))
        people[visitor] = User.objects.get(pk=user.pk)  # what it may do is remembered on the object
    User.objects.create_superuser("root")  # the admin is not the last, who could not be deleted
    owner = people["owner"]
    owner.first_name, owner.last_name = plant("first"), plant("last")
    owner.save()
    owner.groups.add(Group.objects.create(name="climbers"))
    return people


def _answer(worker: StepWorker, text: str, reason: FinishReason = FinishReason.STOP) -> None:
    attempt = worker.claim().start()
    attempt.think(plant("thought"))
    attempt.write(text)
    attempt.finish(reason)
    record.record(attempt.id)


def _conversations(world: World, worker: StepWorker) -> None:
    owner = world.people["owner"]
    talk = send.start_conversation(owner, system_prompt=plant("instructions"))
    file = attachments.add(owner, talk, f"{plant('filename')}.txt", plant("filetext").encode())
    sent = send.send_message(owner, talk, plant("question"), attachments=[file.pk])
    _answer(worker, plant("answer"))
    retried = retry.retry(owner, sent.answer)
    _answer(worker, plant("secondanswer"))
    edited = send.edit(owner, sent.message, plant("edited"))
    _answer(worker, plant("thirdanswer"), FinishReason.CANCELLED)
    given = tool_calls.Call(id="call_1", name="python", arguments=plant("arguments"), result=plant("result"))
    Message.objects.filter(pk=sent.answer.pk).update(calls=tool_calls.stored([given]))
    organize.rename(owner, talk, plant("title"))
    organize.tag(owner, talk, plant("tag"))
    feedback.give(owner, sent.answer, -1, reason="wrong", comment=plant("comment"), is_reported=True)
    draft = attachments.add(owner, talk, f"{plant('draftname')}.txt", plant("drafttext").encode())
    begun = attachments.add(owner, None, "draft.txt", plant("drafttext").encode())
    odd = f"{plant('drafttext')} für 5 € “so”".encode("cp1252")
    guessed = attachments.add(owner, talk, "odd.txt", odd)
    Generation.objects.filter(message__conversation=talk).update(error_message=plant("error"))
    world.ids |= {
        "conversation_id": talk.pk,
        "message_id": sent.answer.pk,
        "question": sent.message.pk,
        "sibling": retried.answer.pk,
        "stopped": edited.answer.pk,
        "settled": sent.generation.pk,
        "attachment_id": file.pk,
        "draft": draft.pk,
        "draft_of_none": begun.pk,
        "draft_guessed": guessed.pk,
        **{form: form for form in ("json", "md", "html")},
        "report_id": Message.objects.get(pk=sent.answer.pk).feedback.pk,
        "tag": plant("tag"),
    }


def _library(world: World) -> None:
    owner = world.people["owner"]
    persona = Persona.objects.create(
        owner=owner, name=plant("persona"), line=plant("personaline"), system_prompt=plant("personatext")
    )
    prompt = PromptTemplate.objects.create(
        owner=owner, name=plant("promptname"), title=plant("prompttitle"), text=plant("prompttext")
    )
    talk = Conversation.objects.get(pk=world.ids["conversation_id"])
    world.ids |= {"persona_id": persona.pk, "prompt_id": prompt.pk}
    for scope in Share.Scope.values:
        shared = talk if scope == "me" else send.start_conversation(owner)
        word = scope.replace("_", "")
        if shared is not talk:
            question = Message.objects.create(conversation=shared, role="user", content=plant(f"{word}text"))
            Conversation.objects.filter(pk=shared.pk).update(leaf=question, title=plant(f"{word}title"))
        link = sharing.share(owner, shared.pk, scope=scope)
        Share.objects.filter(pk=link.pk).update(token=plant(f"{word}token"))
        world.ids |= {f"{scope}_token": plant(f"{word}token"), "token": plant("anyonetoken"), "share_id": link.pk}


def _looked_at(world: World) -> None:
    """A reviewer opened it with a reason and handled its report."""
    reviewer = world.people["reviewer"]
    review.open_transcript(reviewer, world.ids["conversation_id"], reason=plant("reason"), ip="10.0.0.3")
    reports.handle(reviewer, world.ids["report_id"], plant("note"))


def _account(world: World) -> None:
    owner = world.people["owner"]
    EmailAddress.objects.create(user=owner, email=owner.email, verified=True, primary=True)
    for kind, data in (
        (Authenticator.Type.TOTP, {"secret": get_adapter().encrypt(PHONE)}),
        (Authenticator.Type.RECOVERY_CODES, {"migrated_codes": [get_adapter().encrypt("xqrecovery1")], "used_mask": 0}),
    ):
        Authenticator.objects.create(user=owner, type=kind, data=data)
    outside = SocialAccount.objects.create(
        user=owner, provider="github", uid=plant("uid"), extra_data={"login": plant("uid")}
    )
    key, secret = ApiKey.create(owner, plant("keyname"))
    UsageDay.objects.create(user=owner, day=timezone.localdate(), model=MODEL, source="api", api_key=key)
    audit.record(Action.CHANGED, actor=world.people["admin"], subject=owner, detail={"note": plant("audit")}, ip=None)
    audit.record(Action.SIGNED_IN, actor=owner, ip=ADDRESS)
    world.ids |= {"key_id": key.pk, "social_id": outside.pk, "nothing": "nothing"}
    world.secrets |= {
        "phone": PHONE,
        "recovery": "xqrecovery1",
        "key": secret,
        "shownkey": key.shown,
        "address": ADDRESS,
        "hash": key.sha256,
        "password": owner.password.rsplit("$", 1)[-1],
    }


def _running(world: World, worker: StepWorker) -> None:
    """An answer being written, with a message that waits behind it; and a temporary chat."""
    owner = world.people["owner"]
    busy = send.start_conversation(owner)
    sent = send.send_message(owner, busy, plant("running"))
    worker.claim().start().write(plant("half"))
    entry = queue.say(owner, busy, plant("queued"), idempotency_key=uuid.uuid4())
    asked = temporary.ask(owner, [], plant("temporary"))
    worker.claim().start().write(plant("temporaryanswer"))
    world.ids |= {
        "busy": busy.pk,
        "entry_id": entry.pk,
        "generation_id": sent.generation.pk,
        "temporary": asked.generation.pk,
    }


def _of_the_other(world: World, worker: StepWorker) -> None:
    """What the other visitor has, to be named beside what is the owner's."""
    other = world.people["other"]
    own = send.start_conversation(other)
    sent = send.send_message(other, own, "asked by the other")
    attempt = worker.claim().start()
    attempt.write("answered to the other")
    attempt.finish()
    record.record(attempt.id)
    world.ids |= {"others_conversation": own.pk, "others_message": sent.answer.pk}


def _sessions(world: World) -> None:
    """Each visitor has just signed in, and looked at a page; the owner with another browser too."""
    for visitor, user in world.people.items():
        world.cookies[visitor] = _signed_in(user, "10.0.0.1", "Browser of the walk").session.session_key or ""
    elsewhere = _signed_in(world.people["owner"], ADDRESS, BROWSER)
    listed = UserSession.objects.get(session_key=elsewhere.session.session_key)
    tomorrow = timezone.now() + datetime.timedelta(days=1)
    UserSession.objects.update(last_seen_at=tomorrow)  # so that no page notes it again, however long the walk takes
    world.ids["session_id"] = listed.pk
    world.secrets |= {"session": world.cookies["owner"], "othersession": listed.session_key}


def _signed_in(user: User, ip: str, browser: str) -> Client:
    client = Client(REMOTE_ADDR=ip, HTTP_USER_AGENT=browser)
    client.force_login(user)
    request = HttpRequest()
    request.session = session = client.session
    record_authentication(request, user, "password", reauthenticated=True)
    session.save()
    assert client.get("/review/mine/").status_code == 200
    return client


def _rows(world: World) -> None:
    """For each model of Django's admin a row of the owner's, or any where none tells of her."""
    owner = world.people["owner"]
    for model in admin.site._registry:
        table, key = connection.ops.quote_name(model._meta.db_table), connection.ops.quote_name(model._meta.pk.column)
        hers = f"row::text LIKE '%%{owner.pk}%%' OR row::text ILIKE '%%{MARK}%%'"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {key}::text FROM {table} AS row ORDER BY ({hers}) DESC, {key} LIMIT 1", [])
            world.ids[f"row of {model._meta.label_lower}"] = cursor.fetchone()[0]
    world.ids |= {
        "owner_id": owner.pk,
        "reviewer_id": world.people["reviewer"].pk,
        "mail": owner.email,
        "user_type": ContentType.objects.get_for_model(User).pk,
        "chat_app": "chat",
        "accounts_app": "accounts",
    }
