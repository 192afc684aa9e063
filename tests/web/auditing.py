"""People and deeds for tests of the audit log. Deeds are done as people do them, from one address.

root is the admin, alice an ordinary person.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis as redis_py
from allauth.account.models import EmailAddress
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import Client

from chatsite.accounts.models import User
from chatsite.audit.models import Action
from chatsite.chat.models import Conversation, Message

PASSWORD = "correct horse 7"
OTHER_PASSWORD = "another battery 9"
TOTP_SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
ADDRESS = "192.0.2.7"
PSEUDONYM = re.compile(r"deleted user [0-9a-f]{8}")


@dataclass
class World:
    """The people, their browsers, and every secret that a deed has made."""

    root: User
    alice: User
    redis: redis_py.Redis
    secrets: list[str] = field(default_factory=lambda: [PASSWORD, OTHER_PASSWORD, TOTP_SECRET])

    def browser(self, user: User | None = None) -> Client:
        """Of somebody who has just shown their password."""
        client = Client(REMOTE_ADDR=ADDRESS)
        if user is not None:
            client.force_login(user)
            client.post("/accounts/reauthenticate/", {"password": PASSWORD})
        return client

    def talked(self) -> Conversation:
        conversation = Conversation.objects.create(owner=self.alice, title="xyzzy title", model="m")
        question = Message.objects.create(conversation=conversation, role="user", content="xyzzy?")
        conversation.leaf = Message.objects.create(
            conversation=conversation, role="assistant", parent=question, content="xyzzy!"
        )
        conversation.save()
        self.secrets.append("xyzzy")
        return conversation

    def enrol(self) -> list[str]:
        """The recovery codes."""
        TOTP.activate(self.alice, TOTP_SECRET)
        codes = list(RecoveryCodes.activate(self.alice).get_unused_codes())
        self.secrets += codes
        return codes

    def group(self) -> Group:
        return Group.objects.create(name="Careful")


Told = tuple[Action, str, str, str]  # action, actor, subject, target; "…" is any target
Deed = Callable[[World], Callable[[], object]]  # prepares, and returns what is then done


class Deeds(dict[str, tuple[Deed, list[Told], str | None]]):
    """By its name, what prepares a deed, the entries that it makes and the address that stands in them."""

    def add(self, *told: Told, ip: str | None = ADDRESS) -> Callable[[Deed], Deed]:
        def kept(prepare: Deed) -> Deed:
            self[prepare.__name__.replace("_", " ")] = (prepare, list(told), ip)
            return prepare

        return kept


def admin_user_form(user: User, **changes: Any) -> dict[str, Any]:
    """What the admin's page of a person sends when nothing else is changed."""
    page = Client()
    page.force_login(User.objects.get(username="root"))
    shown = page.get(f"/admin/accounts/user/{user.pk}/change/")
    form = shown.context["adminform"].form
    values = {name: form.initial.get(name) for name in form.fields}
    fields: dict[str, Any] = {}
    for name, value in {**values, **changes}.items():
        if name in ("last_login", "date_joined") and value:
            fields[f"{name}_0"], fields[f"{name}_1"] = f"{value:%Y-%m-%d}", f"{value:%H:%M:%S}"
        elif name in ("groups", "user_permissions"):
            fields[name] = [each.pk for each in value or ()]
        elif value not in (None, False):
            fields[name] = value
    for inline in shown.context["inline_admin_formsets"]:
        for name, value in inline.formset.management_form.initial.items():
            fields[f"{inline.formset.prefix}-{name}"] = value
    return fields


def second_address(world: World) -> EmailAddress:
    EmailAddress.objects.create(user=world.alice, email="alice@example.org", primary=True)
    return EmailAddress.objects.create(user=world.alice, email="second@example.org")


def sql(statement: str, *values: object) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, values)
