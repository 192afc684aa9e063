"""The audit log: each deed has its one entry, no secret is in any, and nobody changes what stands there.

root is the admin, alice an ordinary person, rita audits. Deeds are done as people do them, from one address.
"""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis as redis_py
from allauth.account.forms import default_token_generator
from allauth.account.models import EmailAddress
from allauth.account.utils import user_pk_to_url_str
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from allauth.socialaccount.models import SocialAccount
from channels.db import database_sync_to_async
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.http import HttpRequest
from django.test import AsyncClient, Client, RequestFactory
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.api import keys
from chatsite.audit import log
from chatsite.audit.middleware import OriginMiddleware
from chatsite.audit.models import MIN_DAYS, Action, AuditEntry
from chatsite.audit.origin import asked_by, origin
from chatsite.chat.models import Conversation, Message
from chatsite.ops import metrics
from chatsite.review import actions as review
from chatsite.rules.models import GroupRules, SiteRules, UserRules
from chatsite.sharing import actions as sharing
from tests.totp import code

PASSWORD = "correct horse 7"
OTHER_PASSWORD = "another battery 9"
TOTP_SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
ADDRESS = "192.0.2.7"
PSEUDONYM = re.compile(r"deleted user [0-9a-f]{8}")

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]  # limits are counted in Valkey


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


@pytest.fixture
def world(redis: redis_py.Redis, settings: Any) -> World:
    hashers = ("MD5PasswordHasher", "PBKDF2PasswordHasher")  # the first is quick
    settings.PASSWORD_HASHERS = [f"django.contrib.auth.hashers.{name}" for name in hashers]
    root = User.objects.create_superuser("root", password=PASSWORD)
    alice = User.objects.create_user("alice", email="alice@example.org", password=PASSWORD)
    return World(root, alice, redis)


Told = tuple[Action, str, str, str]  # action, actor, subject, target; "…" is any target
Deed = Callable[[World], Callable[[], object]]  # prepares, and returns what is then done
deeds: dict[str, tuple[Deed, list[Told], str | None]] = {}


def deed(*told: Told, ip: str | None = ADDRESS) -> Callable[[Deed], Deed]:
    def kept(prepare: Deed) -> Deed:
        deeds[prepare.__name__.replace("_", " ")] = (prepare, list(told), ip)
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


# -- in and out


@deed((Action.SIGNED_IN, "alice", "", ""))
def signing_in(world: World) -> Callable[[], object]:
    return lambda: world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})


@deed((Action.SIGN_IN_FAILED, "", "alice", ""))
def a_wrong_password(world: World) -> Callable[[], object]:
    return lambda: world.browser().post("/accounts/login/", {"login": "ALICE", "password": OTHER_PASSWORD})


@deed((Action.SIGN_IN_FAILED, "", "nobody" * 25, ""))
def a_name_that_nobody_has(world: World) -> Callable[[], object]:
    return lambda: world.browser().post("/accounts/login/", {"login": "nobody" * 25, "password": PASSWORD})


@deed((Action.SIGN_IN_FAILED, "alice", "", ""))
def a_wrong_password_when_asked_again(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    return lambda: page.post("/accounts/reauthenticate/", {"password": OTHER_PASSWORD})


@deed((Action.SIGN_IN_FAILED, "", "alice", ""))
def an_account_that_is_switched_off(world: World) -> Callable[[], object]:
    User.objects.filter(pk=world.alice.pk).update(is_active=False)
    return lambda: world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})


@deed((Action.SIGNED_OUT, "alice", "", ""))
def signing_out(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    return lambda: page.post("/accounts/logout/")


@deed((Action.CREATED, "carol", "", ""), (Action.SIGNED_IN, "carol", "", ""))
def signing_up(world: World) -> Callable[[], object]:
    form = {"username": "carol", "email": "carol@example.org", "password1": PASSWORD, "password2": PASSWORD}
    return lambda: world.browser().post("/accounts/signup/", form)


@deed((Action.SIGNED_IN, "alice", "", ""))
def signing_in_with_a_hash_of_an_older_kind(world: World) -> Callable[[], object]:
    old = PBKDF2PasswordHasher()
    world.secrets.append(old.encode(PASSWORD, "salt", 1000))
    User.objects.filter(pk=world.alice.pk).update(password=world.secrets[-1])

    def do() -> None:
        world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})
        assert User.objects.get(username="alice").password.startswith("md5$")

    return do


@deed((Action.SESSION_ENDED, "alice", "", ""))
def ending_ones_other_sessions(world: World) -> Callable[[], object]:
    for _ in range(2):
        world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    page = world.browser()
    page.post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    return lambda: page.post("/accounts/sessions/")


# -- one's account


@deed((Action.PASSWORD, "alice", "", ""))
def a_new_password(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    form = {"oldpassword": PASSWORD, "password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD}
    return lambda: page.post("/accounts/password/change/", form)


@deed((Action.PASSWORD, "alice", "", ""))
def a_new_password_by_a_link_from_the_mail(world: World) -> Callable[[], object]:
    page = world.browser()
    token = default_token_generator.make_token(world.alice)
    world.secrets.append(token)
    address = f"/accounts/password/reset/key/{user_pk_to_url_str(world.alice)}-{token}/"
    entry = page.get(address, follow=True).redirect_chain[-1][0]
    return lambda: page.post(entry, {"password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD})


@deed((Action.PASSWORD, "root", "alice", ""))
def a_password_that_the_admin_gives(world: World) -> Callable[[], object]:
    page = world.browser(world.root)
    form = {"usable_password": "true", "password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD}
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/password/", form)


@deed((Action.PASSWORD, "", "alice", ""), ip=None)
def a_password_that_is_switched_off_by_code(world: World) -> Callable[[], object]:
    def do() -> None:
        world.alice.set_unusable_password()
        world.alice.save(update_fields=["password"])

    return do


@deed((Action.EMAIL, "alice", "", ""))
def a_further_address(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    return lambda: page.post("/accounts/email/", {"action_add": "", "email": "second@example.org"})


def second_address(world: World) -> EmailAddress:
    EmailAddress.objects.create(user=world.alice, email="alice@example.org", primary=True)
    return EmailAddress.objects.create(user=world.alice, email="second@example.org")


@deed((Action.EMAIL, "alice", "", ""))
def another_main_address(world: World) -> Callable[[], object]:
    page, second = world.browser(world.alice), second_address(world)
    return lambda: page.post("/accounts/email/", {"action_primary": "", "email": second.email})


@deed((Action.EMAIL, "alice", "", ""))
def an_address_removed(world: World) -> Callable[[], object]:
    page, second = world.browser(world.alice), second_address(world)
    return lambda: page.post("/accounts/email/", {"action_remove": "", "email": second.email})


@deed((Action.EMAIL, "root", "alice", ""))
def an_address_that_the_admin_confirms(world: World) -> Callable[[], object]:
    page, second = world.browser(world.root), second_address(world)
    marked = {"action": "make_verified", "_selected_action": [str(second.pk)]}
    return lambda: page.post("/admin/account/emailaddress/", marked)


@deed((Action.EMAIL, "root", "alice", ""))
def an_address_that_the_admin_changes(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice, email="new@example.org")
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form)


@deed((Action.FACTOR_ADDED, "alice", "", "totp"))
def setting_up_a_second_factor(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    found = re.search(r'class="secret">([A-Z2-7]{32})<', page.get("/accounts/2fa/totp/activate/").content.decode())
    assert found
    world.secrets.append(found[1])
    return lambda: page.post("/accounts/2fa/totp/activate/", {"code": code(found[1])})


@deed((Action.FACTOR_REMOVED, "alice", "", "totp"))
def removing_ones_second_factor(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    world.enrol()
    page.post("/accounts/2fa/reauthenticate/", {"code": code(TOTP_SECRET)})

    def do() -> None:
        page.post("/accounts/2fa/totp/deactivate/")
        assert not Authenticator.objects.exists()

    return do


@deed((Action.FACTOR_REMOVED, "root", "alice", "totp"))
def a_second_factor_that_the_admin_removes(world: World) -> Callable[[], object]:
    page = world.browser(world.root)
    world.enrol()
    marked = {"action": "remove_second_factor", "_selected_action": [str(world.alice.pk)]}

    def do() -> None:
        page.post("/admin/accounts/user/", marked)
        assert not Authenticator.objects.exists()

    return do


@deed((Action.SIGN_IN_FAILED, "", "alice", ""))
def a_wrong_second_factor(world: World) -> Callable[[], object]:
    world.enrol()
    page = world.browser()
    page.post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    return lambda: page.post("/accounts/2fa/authenticate/", {"code": "123"})


@deed((Action.CONNECTED, "", "alice", "github"), ip=None)
def an_outside_account_connected(world: World) -> Callable[[], object]:
    return lambda: SocialAccount.objects.create(user=world.alice, provider="github", uid="4711")


@deed((Action.DISCONNECTED, "", "alice", "github"), ip=None)
def an_outside_account_disconnected(world: World) -> Callable[[], object]:
    connected = SocialAccount.objects.create(user=world.alice, provider="github", uid="4711")
    return connected.delete


# -- keys and links


@deed((Action.KEY_CREATED, "alice", "", "…"))
def making_a_key(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)

    def do() -> None:
        form = {"name": "laptop", "scopes": ["chat"], "days": "7", "token": str(uuid4())}
        shown = page.post("/account/keys/", form).content.decode()
        found = re.search(r"sf_[\w-]{43}", shown)
        assert found
        world.secrets.append(found[0])

    return do


@deed((Action.KEY_CREATED, "", "alice", "…"), ip=None)
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


@deed((Action.KEY_CHANGED, "alice", "", "…"))
def naming_a_key_anew(world: World) -> Callable[[], object]:
    key, page = key_of(world), world.browser(world.alice)
    return lambda: page.post(f"/account/keys/{key.pk}/rename/", {"name": "phone"})


@deed((Action.KEY_REVOKED, "alice", "", "…"))
def revoking_a_key(world: World) -> Callable[[], object]:
    key, page = key_of(world), world.browser(world.alice)
    return lambda: page.post(f"/account/keys/{key.pk}/revoke/")


@deed((Action.KEY_REVOKED, "root", "alice", "…"))
def a_key_that_the_admin_revokes(world: World) -> Callable[[], object]:
    key, page = key_of(world), world.browser(world.root)
    marked = {"action": "revoke", "_selected_action": [str(key.pk)]}
    return lambda: page.post("/admin/accounts/apikey/", marked)


@deed((Action.KEY_REVOKED, "root", "alice", "…"))
def a_key_that_the_admin_deletes(world: World) -> Callable[[], object]:
    key, page = key_of(world), world.browser(world.root)
    return lambda: page.post(f"/admin/accounts/apikey/{key.pk}/delete/", {"post": "yes"})


@deed((Action.LINK_CREATED, "alice", "", "…"))
def sharing_a_conversation(world: World) -> Callable[[], object]:
    conversation, page = world.talked(), world.browser(world.alice)

    def do() -> None:
        page.post(f"/chat/{conversation.pk}/share/", {"scope": "me"})
        world.secrets.append(conversation.shares.get().token)

    return do


@deed((Action.LINK_CHANGED, "alice", "", "…"))
def sharing_it_with_more_people(world: World) -> Callable[[], object]:
    conversation, page = world.talked(), world.browser(world.alice)
    world.secrets.append(sharing.share(world.alice, conversation.pk, scope="me").token)
    return lambda: page.post(f"/chat/{conversation.pk}/share/", {"scope": "signed_in"})


@deed((Action.LINK_REVOKED, "alice", "", "…"))
def ending_a_link(world: World) -> Callable[[], object]:
    link, page = sharing.share(world.alice, world.talked().pk, scope="me"), world.browser(world.alice)
    world.secrets.append(link.token)
    return lambda: page.post(f"/links/{link.pk}/revoke/")


# -- what admins do


@deed((Action.CREATED, "root", "carol", ""))
def an_account_that_the_admin_makes(world: World) -> Callable[[], object]:
    page = world.browser(world.root)
    form = {"username": "carol", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
    return lambda: page.post("/admin/accounts/user/add/", form)


@deed((Action.CREATED, "", "carol", ""), ip=None)
def an_admin_that_the_command_makes(world: World) -> Callable[[], object]:
    options = {"username": "carol", "email": "c@example.org", "interactive": False, "verbosity": 0}
    return lambda: call_command("createsuperuser", **options)


@deed((Action.CHANGED, "root", "alice", ""))
def a_role_that_the_admin_gives(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice, is_staff=True)
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form)


@deed((Action.CHANGED, "root", "alice", ""))
def an_account_that_the_admin_switches_off(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice, is_active=False)
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form)


@deed((Action.CHANGED, "root", "alice", ""))
def a_group_that_the_admin_gives(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice, groups=[world.group()])
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form)


@deed()
def saving_a_person_in_the_admin_unchanged(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice)

    def do() -> None:
        assert page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form).status_code == 302

    return do


@deed((Action.CHANGED, "", "alice", ""), ip=None)
def a_group_taken_by_code(world: World) -> Callable[[], object]:
    group = world.group()
    world.alice.groups.add(group)
    return lambda: world.alice.groups.set([])


@deed()
def a_group_taken_that_was_never_given(world: World) -> Callable[[], object]:
    group = world.group()
    return lambda: (world.alice.groups.remove(group), world.alice.groups.clear())


@deed((Action.CHANGED, "", "root", ""), (Action.CHANGED, "", "alice", ""), ip=None)
def members_added_from_the_groups_side(world: World) -> Callable[[], object]:
    group = world.group()
    return lambda: group.user_set.add(world.alice, world.root)  # type: ignore[attr-defined]


@deed((Action.CHANGED, "", "alice", ""), ip=None)
def a_permission_given_by_code(world: World) -> Callable[[], object]:
    permission = Permission.objects.get(codename="view_auditentry")
    return lambda: world.alice.user_permissions.add(permission)


@deed((Action.GROUP_CHANGED, "", "", "Careful"), ip=None)
def a_group_made(world: World) -> Callable[[], object]:
    return world.group


@deed((Action.GROUP_CHANGED, "", "", "Careless"), ip=None)
def a_group_named_anew(world: World) -> Callable[[], object]:
    group = world.group()
    group.name = "Careless"
    return group.save


@deed((Action.GROUP_CHANGED, "", "", "Careful"), ip=None)
def a_permission_taken_from_a_group(world: World) -> Callable[[], object]:
    group = world.group()
    group.permissions.add(Permission.objects.get(codename="view_auditentry"))
    return group.permissions.clear


@deed((Action.GROUP_CHANGED, "root", "", "Careful"))
def a_group_that_the_admin_deletes(world: World) -> Callable[[], object]:
    group, page = world.group(), world.browser(world.root)
    GroupRules.objects.create(group=group, retention_days=7)
    return lambda: page.post(f"/admin/auth/group/{group.pk}/delete/", {"post": "yes"})


@deed((Action.RULES_CHANGED, "", "", "site"), ip=None)
def rules_of_the_site(world: World) -> Callable[[], object]:
    return lambda: SiteRules(id=1, audit_days=100).save()


@deed((Action.RULES_CHANGED, "", "", "group Careful"), ip=None)
def rules_of_a_group(world: World) -> Callable[[], object]:
    group = world.group()
    return lambda: GroupRules.objects.create(group=group, tokens_per_day=5)


@deed((Action.RULES_CHANGED, "", "alice", ""), ip=None)
def rules_of_a_person_deleted(world: World) -> Callable[[], object]:
    return UserRules.objects.create(user=world.alice, tokens_per_day=5).delete


@deed((Action.TRANSCRIPT_OPENED, "root", "alice", "…"))
def opening_a_conversation_of_another(world: World) -> Callable[[], object]:
    conversation, page = world.talked(), world.browser(world.root)
    return lambda: page.post(f"/review/{conversation.pk}/", {"reason": "Report 4711"})


@deed((Action.RECORDS_CHANGED, "root", "", "email address …"))
def a_row_of_something_else_changed_in_the_admin(world: World) -> Callable[[], object]:
    second, page = second_address(world), world.browser(world.root)
    form = {"user": str(world.alice.pk), "email": "third@example.org"}
    return lambda: page.post(f"/admin/account/emailaddress/{second.pk}/change/", form)


@deed((Action.RECORDS_CHANGED, "root", "", "email address …"))
def a_single_row_marked_and_deleted_in_the_admin(world: World) -> Callable[[], object]:
    second, page = second_address(world), world.browser(world.root)
    marked = {"action": "delete_selected", "_selected_action": [str(second.pk)], "post": "yes"}
    return lambda: page.post("/admin/account/emailaddress/", marked)


@deed((Action.RECORDS_CHANGED, "root", "", "email addresses"))
def many_rows_deleted_at_once_in_the_admin(world: World) -> Callable[[], object]:
    second_address(world)
    page = world.browser(world.root)
    marked = {"action": "delete_selected", "_selected_action": [row.pk for row in EmailAddress.objects.all()]}

    def do() -> None:
        assert b"Are you sure" in page.post("/admin/account/emailaddress/", marked).content
        page.post("/admin/account/emailaddress/", {**marked, "post": "yes"})
        assert not EmailAddress.objects.exists()

    return do


@deed((Action.DATA_EXPORTED, "root", "", "audit log"))
def taking_the_log_away(world: World) -> Callable[[], object]:
    page = world.browser(world.root)
    return lambda: page.post("/ops/audit/csv/", {"person": "alice"})


@deed((Action.DELETED, "root", "…", ""))
def an_account_that_is_deleted(world: World) -> Callable[[], object]:
    with asked_by(world.root, ADDRESS):
        return lambda: asked_by_root(world, world.alice.delete)


def asked_by_root(world: World, do: Callable[[], object]) -> None:
    with asked_by(world.root, ADDRESS):
        do()


@pytest.mark.parametrize("name", deeds)
def test_each_deed_has_its_one_entry_and_no_secret_is_in_any(
    name: str, world: World, django_capture_on_commit_callbacks: Any
) -> None:
    prepare, expected, ip = deeds[name]
    do = prepare(world)
    known = set(AuditEntry.objects.values_list("pk", flat=True))
    with django_capture_on_commit_callbacks(execute=True):
        do()
    made = list(AuditEntry.objects.exclude(pk__in=known).order_by("id"))
    told = [(entry.action, entry.actor_name, entry.subject_name, entry.target) for entry in made]
    assert len(told) == len(expected), told
    for entry, (action, actor, subject, target) in zip(made, expected, strict=True):
        assert (entry.action, entry.actor_name, entry.ip) == (action, actor, ip), told
        assert entry.subject_name == subject if subject != "…" else PSEUDONYM.fullmatch(entry.subject_name), told
        assert re.fullmatch(re.escape(target).replace("…", ".+"), entry.target), told
        assert (entry.actor is None) == (actor == "")
        assert entry.subject is None or entry.subject.username == subject
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(e::text, '\n') FROM audit_auditentry e")
        text = cursor.fetchone()[0]
    hashes = [*User.objects.values_list("password", flat=True), *ApiKey.objects.values_list("sha256", flat=True)]
    for secret in filter(None, (*world.secrets, *hashes)):
        assert secret not in text


# -- what entries say


def test_a_change_says_from_what_to_what(world: World) -> None:
    SiteRules.objects.create(id=1, retention_days=30)
    world.alice.is_staff = True
    world.alice.username = "alicia"
    world.alice.save()
    rules = SiteRules.objects.get()
    rules.retention_days, rules.two_factor = None, "staff"
    rules.save()
    group = world.group()
    world.alice.groups.add(group)
    changed, site, member = (
        AuditEntry.objects.filter(action=action).order_by("id").last()
        for action in (Action.CHANGED, Action.RULES_CHANGED, Action.CHANGED)
    )
    assert site and site.detail == {"changes": {"retention_days": [30, None], "two_factor": ["nobody", "staff"]}}
    assert member and member.detail == {"groups_added": ["Careful"]}
    changed = AuditEntry.objects.filter(action=Action.CHANGED).earliest("id")
    assert changed.detail == {"changes": {"is_staff": [False, True]}, "personal": {"username": ["alice", "alicia"]}}


def test_an_account_is_not_changed_when_that_cannot_be_recorded(world: World) -> None:
    group = world.group()
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql("ALTER TABLE audit_auditentry ADD CONSTRAINT full_disk CHECK (target = 'x') NOT VALID")
    world.alice.is_superuser = True
    for attempt in (world.alice.save, world.alice.delete, lambda: world.alice.groups.add(group)):
        with pytest.raises(DatabaseError), transaction.atomic():
            attempt()
    world.alice = User.objects.get(username="alice")
    assert not world.alice.is_superuser
    assert not world.alice.groups.exists()


@pytest.mark.django_db(transaction=True)  # allauth tells when that is committed
def test_recovery_codes_made_anew_are_one_deed(world: World) -> None:
    page = world.browser(world.alice)
    world.enrol()
    page.post("/accounts/2fa/reauthenticate/", {"code": code(TOTP_SECRET)})
    known = AuditEntry.objects.latest("id").pk
    page.post("/accounts/2fa/recovery-codes/generate/")
    [entry] = AuditEntry.objects.filter(pk__gt=known)
    assert (entry.action, entry.actor_name, entry.ip) == (Action.FACTOR_RESET, "alice", ADDRESS)


def test_failed_sign_ins_are_counted_by_what_was_wrong(world: World, django_capture_on_commit_callbacks: Any) -> None:
    def number() -> float:
        found = re.search(r'smolfleet_failed_sign_ins_total\{step="password"\} (\S+)', metrics.text().decode())
        return float(found[1]) if found else 0.0

    before = number()
    with django_capture_on_commit_callbacks(execute=True):
        world.browser().post("/accounts/login/", {"login": "alice", "password": "wrong"})
    assert number() == before + 1


# -- who asks, and from where


@pytest.mark.parametrize(
    ("proxies", "forwarded", "seen"),
    [
        (0, "203.0.113.9", ADDRESS),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        (2, "198.51.100.1, 203.0.113.9", "198.51.100.1"),
        (1, "", ADDRESS),
    ],
)
def test_the_address_is_the_one_that_trusted_proxies_name(
    world: World, settings: Any, proxies: int, forwarded: str, seen: str
) -> None:
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = proxies
    headers = {"HTTP_X_FORWARDED_FOR": forwarded} if forwarded else {}
    client = Client(REMOTE_ADDR=ADDRESS, **headers)
    client.post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    assert AuditEntry.objects.get(action=Action.SIGNED_IN).ip == seen


def test_nothing_is_read_of_a_request_that_records_nothing(world: World, django_assert_num_queries: Any) -> None:
    client = Client()
    with django_assert_num_queries(0):
        for path in ("/health/live", "/favicon.ico", "/manifest.webmanifest", "/static/css/app.css"):
            assert "Cookie" not in client.get(path).get("Vary", ""), path


async def test_origin_follows_a_request_through_threads_and_ends_with_it() -> None:
    from asgiref.sync import sync_to_async

    async def view(request: HttpRequest) -> Any:
        return await sync_to_async(lambda: origin().ip)()

    request = RequestFactory(REMOTE_ADDR=ADDRESS).get("/")
    assert await OriginMiddleware(view)(request) == ADDRESS  # type: ignore[arg-type, misc]
    assert await sync_to_async(lambda: OriginMiddleware(lambda _request: origin().ip)(request))() == ADDRESS  # type: ignore[arg-type, return-value]
    assert origin().ip is None


# -- final


def sql(statement: str, *values: object) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, values)


@pytest.fixture
def entry(world: World) -> AuditEntry:
    return log.record(
        Action.TRANSCRIPT_OPENED, actor=world.root, subject=world.alice, target="t", detail={"reason": "x"}, ip=ADDRESS
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", uuid4()),
        ("at", timezone.now() - datetime.timedelta(days=365)),
        ("action", "account.changed"),
        ("actor_name", "deleted user"),
        ("actor_name", "somebody"),
        ("actor_name", ""),
        ("actor_name", "deleted user 0123abcd"),  # and not emptied
        ("actor_id", None),  # and no pseudonym
        ("subject_id", None),
        ("subject_name", "deleted user 0123abcd"),
        ("target", "another"),
        ("detail", "{}"),
        ("ip", None),
        ("ip", "198.51.100.1"),
    ],
)
def test_no_column_of_an_entry_is_ever_changed(entry: AuditEntry, column: str, value: object) -> None:
    with pytest.raises(DatabaseError, match="never changed"):
        sql(f"UPDATE audit_auditentry SET {column} = %s WHERE id = %s", value, entry.pk)
    with pytest.raises(DatabaseError, match="never changed"):
        sql(
            f"UPDATE audit_auditentry SET actor_id = NULL, actor_name = 'deleted user 0123abcd', {column} = %s"
            " WHERE id = %s"
            if not column.startswith("actor")
            else f"UPDATE audit_auditentry SET subject_id = actor_id, {column} = %s WHERE id = %s",
            value,
            entry.pk,
        )


def test_an_entry_is_not_deleted_before_its_time_nor_the_table_emptied(entry: AuditEntry) -> None:
    sql("SET CONSTRAINTS ALL IMMEDIATE")  # Postgres itself would refuse, else
    for statement in ("DELETE FROM audit_auditentry", "TRUNCATE audit_auditentry"):
        with pytest.raises(DatabaseError, match="not deleted"):
            sql(statement)
    entry.target = "another"
    with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
        entry.save()
    with pytest.raises(DatabaseError, match="not deleted"), transaction.atomic():
        entry.delete()
    assert AuditEntry.objects.filter(pk=entry.pk).exists()


def test_old_entries_go_by_the_rule_and_never_sooner_than_the_trigger_lets_them(world: World) -> None:
    def aged(days: float) -> UUID:
        with connection.cursor() as cursor:
            pk = uuid4()
            cursor.execute(
                "INSERT INTO audit_auditentry (id, at, action, actor_name, subject_name, target, detail)"
                " VALUES (%s, now() - make_interval(secs => %s), 'account.signed_in', '', '', '', '{}')",
                [pk, days * 86_400],
            )
        return pk

    kept = [aged(0), aged(MIN_DAYS - 0.01), aged(119.99)]
    gone = [aged(120.01), aged(4000)]
    with pytest.raises(ValueError, match="90 days"):
        log.purge(MIN_DAYS - 1)
    assert log.purge(120) == len(gone)
    assert set(AuditEntry.objects.filter(action=Action.SIGNED_IN).values_list("pk", flat=True)) == set(kept)
    with pytest.raises(DatabaseError, match="not deleted"):
        sql("DELETE FROM audit_auditentry WHERE id = %s", kept[1])
    sql("DELETE FROM audit_auditentry WHERE id = %s", kept[2])


def test_an_erased_person_is_in_no_entry_and_has_one_pseudonym_in_all(world: World) -> None:
    world.browser().post("/accounts/login/", {"login": "Alice", "password": "wrong"})
    world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    page = world.browser(world.root)
    page.post(f"/admin/accounts/user/{world.alice.pk}/change/", admin_user_form(world.alice, email="a2@example.org"))
    world.alice.refresh_from_db()
    world.alice.first_name = "Alice B"
    world.alice.save()
    mention = {"reason": 'Alice asked: "alice", not malice', "more": [{"who": "alice"}, 7, None, True]}
    log.record(Action.TRANSCRIPT_OPENED, actor=world.root, subject=world.alice, detail=mention, ip="192.0.2.1")
    world.alice.username = "alicia"
    world.alice.save()
    log.record(Action.SIGN_IN_FAILED, subject_name="ALICIA", ip=ADDRESS)  # before there was such an account
    other = log.record(Action.KEY_CREATED, actor=world.root, detail={"personal": {"name": "alice's"}}, ip="192.0.2.1")
    by_alice = log.record(
        Action.CHANGED, actor=world.alice, subject=world.root, detail={"personal": {"first_name": ["", "R"]}}
    )
    pk = world.alice.pk
    concerned = AuditEntry.objects.filter(actor=pk) | AuditEntry.objects.filter(subject=pk)
    ids = [*concerned.values_list("pk", flat=True), AuditEntry.objects.get(subject_name="ALICIA").pk]
    with asked_by(world.root, ADDRESS):
        world.alice.delete()
    deletion = AuditEntry.objects.get(action=Action.DELETED)
    entries = AuditEntry.objects.filter(pk__in=[*ids, deletion.pk])
    names = {entry.actor_name for entry in entries} | {entry.subject_name for entry in entries}
    [pseudonym] = names - {"", "root"}
    assert PSEUDONYM.fullmatch(pseudonym)
    assert len(entries) == len(ids) + 1 > 7
    for entry in entries:
        assert pseudonym in (entry.actor_name, entry.subject_name)
        assert (entry.actor_id, entry.subject_id).count(None) == 2 or world.root.pk in (
            entry.actor_id,
            entry.subject_id,
        )
        if entry.actor_name != "root":
            assert entry.ip is None, entry
    opened = entries.get(action=Action.TRANSCRIPT_OPENED)
    assert opened.detail == {
        "reason": f'{pseudonym} asked: "{pseudonym}", not malice',
        "more": [{"who": pseudonym}, 7, None, True],
    }
    assert (opened.actor, opened.ip) == (world.root, "192.0.2.1")
    other.refresh_from_db()
    by_alice.refresh_from_db()
    assert (other.detail, other.ip) == ({"personal": {"name": "alice's"}}, "192.0.2.1")
    assert by_alice.detail == {"personal": {"first_name": ["", "R"]}}, "it is another's"
    assert by_alice.subject == world.root
    text = str(list(entries.values()))
    for word in ("alicia", "a2@example.org", "Alice B", "ALICIA"):
        assert word not in text


def test_a_pseudonym_stays(world: World) -> None:
    log.record(Action.SIGNED_OUT, actor=world.alice)
    world.alice.delete()
    with pytest.raises(DatabaseError, match="never changed"):
        sql("UPDATE audit_auditentry SET actor_name = 'deleted user 0123abcd' WHERE action = 'account.signed_out'")


@pytest.mark.parametrize("name", ["true", "null", "a.b+c@d-e_f", "deleted", "ann-mary", "é.ü"])
def test_any_name_can_be_erased(world: World, name: str) -> None:
    user = User.objects.create_user(name)
    detail = {"on": True, "none": None, "text": f"of {name}, ({name})", name: 1.5}
    entry = log.record(Action.TRANSCRIPT_OPENED, actor=world.root, subject=user, detail=detail)
    user.delete()
    entry.refresh_from_db()
    pseudonym = entry.subject_name
    assert entry.detail == {"on": True, "none": None, "text": f"of {pseudonym}, ({pseudonym})", name: 1.5}


# -- pages


@pytest.fixture
def rita() -> User:
    """An auditor who is no staff."""
    rita = User.objects.create_user("rita", password=PASSWORD)
    rita.user_permissions.add(Permission.objects.get(codename="view_auditentry"))
    return rita


def shown(client: Client, **asked: str) -> str:
    answer = client.get("/ops/audit/", asked)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("path", ["/ops/audit/", "/ops/audit/csv/"])
def test_only_auditors_open_the_log(world: World, rita: User, path: str) -> None:
    staff = User.objects.create_user("sam", is_staff=True)

    def status(user: User | None) -> int:
        client = world.browser(user)
        return (client.post(path) if "csv" in path else client.get(path)).status_code

    assert [status(user) for user in (None, world.alice, staff, rita, world.root)] == [302, 404, 403, 200, 200]
    refused = world.browser(world.root)
    assert (refused.get(path) if "csv" in path else refused.post(path)).status_code == 405


def test_reading_the_log_changes_nothing(world: World, rita: User) -> None:
    client = world.browser(rita)
    number = AuditEntry.objects.count()
    shown(client)
    client.get("/account/activity/")
    assert AuditEntry.objects.count() == number


def test_entries_are_found_by_person_deed_and_day(world: World, rita: User) -> None:
    client = world.browser(rita)
    log.record(Action.GROUP_CHANGED, actor=world.root, target="Careful group")
    log.record(Action.LINK_CREATED, actor=world.alice, target="Alice's link")
    log.record(Action.SIGN_IN_FAILED, subject_name="mallory")
    sql(
        "INSERT INTO audit_auditentry (id, at, action, actor_name, subject_name, target, detail)"
        " VALUES (%s, '2024-03-05 23:30+00', 'link.revoked', 'old', '', 'long ago', '{}')",
        uuid4(),
    )
    assert "Careful group" in shown(client) and "Alice&#x27;s link" in shown(client)
    page = shown(client, person="ALICE")
    assert "Alice&#x27;s link" in page and "Careful group" not in page and "mallory" not in page
    assert "mallory" in shown(client, person="mallory")
    assert "No entry found." in shown(client, person="ali")
    page = shown(client, action="group.changed")
    assert "Careful group" in page and "Alice&#x27;s link" not in page
    page = shown(client, since="2024-03-05", until="2024-03-05")
    assert "long ago" in page and "Careful group" not in page
    assert "long ago" not in shown(client, since="2024-03-06")
    assert "long ago" not in shown(client, until="2024-03-04")
    assert "long ago" in shown(client, since="0001-01-01", until="9999-12-31")
    world.alice.username = "alicia"
    world.alice.save()
    assert "Alice&#x27;s link" in shown(client, person="alicia"), "an account is found by its name of today"
    world.alice.delete()
    pseudonym = AuditEntry.objects.get(target="Alice's link").actor_name
    assert "Alice&#x27;s link" in shown(client, person=pseudonym)
    assert "alicia" not in shown(client)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"since": "2024-03-05", "until": "2024-03-04"}, "The last day, 2024-03-04, is before the first, 2024-03-05."),
        ({"since": "yesterday"}, "Enter a valid date."),
        ({"action": "flying"}, "Select a valid choice. flying is not one of the available choices."),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused_in_words(
    world: World, rita: User, asked: dict[str, str], sentence: str
) -> None:
    client = world.browser(rita)
    for answer in (client.get("/ops/audit/", asked), client.post("/ops/audit/csv/", asked)):
        assert answer.status_code == 400
        assert sentence in answer.content.decode()
    assert not AuditEntry.objects.filter(action=Action.DATA_EXPORTED).exists()
    assert client.get("/ops/audit/", {"before": "7"}).status_code == 404


def test_pages_have_fifty_entries_the_newest_first_and_keep_the_filter(world: World, rita: User) -> None:
    client = world.browser(rita)
    for number in range(103):
        log.record(Action.LINK_REVOKED, actor=world.alice, target=f"link-{number:03}.")
    seen: list[str] = []
    address = "?person=alice&action=link.revoked"
    for step in itertools.count():
        page = client.get(f"/ops/audit/{address}").content.decode()
        seen.append(page)
        assert ("Newest" in page) == (step > 0)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        if not found:
            break
        address = found[1].replace("&amp;", "&")
        assert "person=alice" in address
    order = [re.findall(r"link-(\d+)\.", page) for page in seen]
    assert [len(numbers) for numbers in order] == [50, 50, 3]
    assert [*itertools.chain(*order)] == [f"{number:03}" for number in reversed(range(103))]


def test_names_on_the_page_are_text(world: World, rita: User) -> None:
    log.record(Action.SIGN_IN_FAILED, subject_name="<script>alert(1)</script>", detail={"<b>": "<i>"})
    page = shown(world.browser(rita))
    assert "<script>alert" not in page and "<b>" not in page and "<i>" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.django_db(transaction=True)
async def test_csv_holds_what_was_found_and_no_formula(world: World, rita: User, monkeypatch: Any) -> None:
    monkeypatch.setattr("chatsite.audit.sheet.ROWS_AT_ONCE", 2)
    names = ["=1+1", "+1", "-1", "@x", "\t=1", "plain, with comma", "multi\nline"]

    def prepare() -> None:
        for name in names:
            log.record(Action.SIGN_IN_FAILED, subject_name=name, ip=ADDRESS, detail={"step": "password"})

    await database_sync_to_async(prepare)()
    client = AsyncClient()
    await database_sync_to_async(client.force_login)(rita)
    response = await client.post("/ops/audit/csv/", {"action": "account.sign_in_failed"})
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(r'attachment; filename="audit \d{4}-\d\d-\d\d\.csv"', response["Content-Disposition"])
    data = b"".join([piece async for piece in response]).decode()  # type: ignore[attr-defined]
    rows = list(csv.DictReader(io.StringIO(data)))
    kept = [name if name[0] not in "=+-@\t" else f"'{name}" for name in names]
    assert [row["subject"] for row in rows] == kept[::-1]
    assert {(row["action"], row["ip"], row["detail"]) for row in rows} == {
        ("account.sign_in_failed", ADDRESS, '{"step": "password"}')
    }
    assert datetime.datetime.fromisoformat(rows[0]["at"]).utcoffset() == datetime.timedelta()
    taken = await database_sync_to_async(AuditEntry.objects.get)(action=Action.DATA_EXPORTED)
    assert (taken.actor_name, taken.detail) == ("rita", {"action": "account.sign_in_failed"})


def test_everybody_sees_what_concerns_them_and_nothing_else(world: World) -> None:
    world.browser().post("/accounts/login/", {"login": "alice", "password": "wrong"})
    with asked_by(world.root, "198.51.100.99"):
        log.record_about(world.alice, Action.CHANGED, detail={"changes": {"is_staff": [False, True]}})
        log.record(Action.GROUP_CHANGED, target="Careful group")
    with asked_by(world.alice, "203.0.113.5"):
        log.record_about(world.root, Action.KEY_REVOKED, target="sf_of_root")
        log.record(Action.KEY_CREATED, target="sf_of_alice")
    answer = world.browser(world.alice).get("/account/activity/")
    page = answer.content.decode()
    for part in ("Failed to sign in", ADDRESS, "by root", "Staff: no → yes", "sf_of_alice", "203.0.113.5"):
        assert part in page, part
    for part in ("Careful group", "sf_of_root", "198.51.100.99"):
        assert part not in page, part
    assert "sf_of_root" in world.browser(world.root).get("/account/activity/").content.decode()
    assert world.browser().get("/account/activity/").status_code == 302
    assert "no-store" in answer["Cache-Control"]


def test_links_lead_auditors_to_the_log_and_nobody_else(world: World, rita: User) -> None:
    assert 'href="/ops/audit/"' in world.browser(world.root).get("/ops/").content.decode()
    assert 'href="/ops/audit/"' in world.browser(rita).get("/account/activity/").content.decode()
    staff = User.objects.create_user("sam", is_staff=True)
    assert 'href="/ops/audit/"' not in world.browser(staff).get("/ops/").content.decode()
    assert 'href="/account/activity/"' in world.browser(world.alice).get("/account/activity/").content.decode()


def test_review_tells_the_log_and_keeps_its_own_record(world: World) -> None:
    opened = review.open_transcript(world.root, world.talked().pk, reason="Report 4711", ip=ADDRESS)
    entry = AuditEntry.objects.get(action=Action.TRANSCRIPT_OPENED)
    assert entry.detail == {"reason": "Report 4711"}
    assert (entry.actor_name, entry.subject_name, entry.target) == ("root", "alice", opened.event.conversation_key)
