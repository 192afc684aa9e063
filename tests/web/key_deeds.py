"""Deeds that the audit log must tell: keys of the API and links to conversations, by their owner or the admin."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from uuid import uuid4

from django.core.management import call_command

from chatsite.accounts.models import ApiKey
from chatsite.api import keys
from chatsite.audit.models import Action
from chatsite.sharing import actions as sharing
from tests.web.auditing import Deeds, World

deeds = Deeds()


@deeds.add((Action.KEY_CREATED, "alice", "", "…"))
def making_a_key(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)

    def do() -> None:
        form = {"name": "laptop", "scopes": ["chat"], "days": "7", "token": str(uuid4())}
        shown = page.post("/account/keys/", form).content.decode()
        found = re.search(r"sf_[\w-]{43}", shown)
        assert found
        world.secrets.append(found[0])

    return do


@deeds.add((Action.KEY_CREATED, "", "alice", "…"), ip=None)
def making_a_key_by_the_command(world: World) -> Callable[[], object]:
    def do() -> None:
        out = io.StringIO()
        call_command("createapikey", "alice", stdout=out, stderr=io.StringIO())
        world.secrets.append(out.getvalue().strip())

    return do


def key_of(world: World) -> ApiKey:
    key, secret = keys.create(world.alice, "laptop", scopes=["chat"])
    world.secrets.append(secret)
    return key


@deeds.add((Action.KEY_CHANGED, "alice", "", "…"))
def naming_a_key_anew(world: World) -> Callable[[], object]:
    key, page = key_of(world), world.browser(world.alice)
    return lambda: page.post(f"/account/keys/{key.pk}/rename/", {"name": "phone"})


@deeds.add((Action.KEY_REVOKED, "alice", "", "…"))
def revoking_a_key(world: World) -> Callable[[], object]:
    key, page = key_of(world), world.browser(world.alice)
    return lambda: page.post(f"/account/keys/{key.pk}/revoke/")


@deeds.add((Action.KEY_REVOKED, "root", "alice", "…"))
def a_key_that_the_admin_revokes(world: World) -> Callable[[], object]:
    key, page = key_of(world), world.browser(world.root)
    marked = {"action": "revoke", "_selected_action": [str(key.pk)]}
    return lambda: page.post("/admin/accounts/apikey/", marked)


@deeds.add((Action.KEY_REVOKED, "root", "alice", "…"))
def a_key_that_the_admin_deletes(world: World) -> Callable[[], object]:
    key, page = key_of(world), world.browser(world.root)
    return lambda: page.post(f"/admin/accounts/apikey/{key.pk}/delete/", {"post": "yes"})


@deeds.add((Action.LINK_CREATED, "alice", "", "…"))
def sharing_a_conversation(world: World) -> Callable[[], object]:
    conversation, page = world.talked(), world.browser(world.alice)

    def do() -> None:
        page.post(f"/chat/{conversation.pk}/share/", {"scope": "me"})
        world.secrets.append(conversation.shares.get().token)

    return do


@deeds.add((Action.LINK_CHANGED, "alice", "", "…"))
def sharing_it_with_more_people(world: World) -> Callable[[], object]:
    conversation, page = world.talked(), world.browser(world.alice)
    world.secrets.append(sharing.share(world.alice, conversation.pk, scope="me").token)
    return lambda: page.post(f"/chat/{conversation.pk}/share/", {"scope": "signed_in"})


@deeds.add((Action.LINK_REVOKED, "alice", "", "…"))
def ending_a_link(world: World) -> Callable[[], object]:
    link, page = sharing.share(world.alice, world.talked().pk, scope="me"), world.browser(world.alice)
    world.secrets.append(link.token)
    return lambda: page.post(f"/links/{link.pk}/revoke/")
