"""Roles: a permission is enough for its page, staff or not; the three groups made once; what admins do with people.

olga has a role, sam is staff without one, alice is nobody in particular, root is a superuser.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import redis as redis_py
from django.apps import apps
from django.contrib.admin import site
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.api.authentication import authenticate
from chatsite.api.errors import Unauthorized
from chatsite.audit.models import AuditEntry
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.queries import access
from chatsite.ops import people
from chatsite.privacy.admin import ErasingUserAdmin
from chatsite.rules import roles
from chatsite.rules.effective import rules_of
from chatsite.rules.models import GroupRules
from chatsite.usage.models import UsageDay

LIST = "/admin/accounts/user/"
ROLES = {
    "Operators": {"view_fleet", "view_analytics"},
    "Reviewers": {"view_transcript"},
    "Auditors": {"view_auditentry"},
}

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice")


@pytest.fixture
def olga() -> User:
    return User.objects.create_user("olga")


@pytest.fixture
def sam() -> User:
    return User.objects.create_user("sam", is_staff=True)


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


@pytest.fixture
def admin(root: User) -> Client:
    return signed_in(root)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def granted(user: User, *codenames: str) -> User:
    user.user_permissions.add(*Permission.objects.filter(codename__in=codenames))
    return User.objects.get(pk=user.pk)  # what it may do is remembered on the object


def make_roles() -> None:
    importlib.import_module("chatsite.rules.migrations.0002_roles").make_roles(apps, None)


# -- the groups


def test_the_groups_hold_what_their_pages_ask_for(alice: User) -> None:
    Group.objects.all().delete()
    make_roles()
    found = {group.name: {right.codename for right in group.permissions.all()} for group in Group.objects.all()}
    assert found == ROLES
    for name, permissions in (
        ("Operators", {roles.FLEET, roles.ANALYTICS}),
        ("Reviewers", {roles.TRANSCRIPTS}),
        ("Auditors", {roles.AUDIT}),
    ):
        alice.groups.set([Group.objects.get(name=name)])
        assert User.objects.get(pk=alice.pk).get_all_permissions() == permissions


def test_a_group_that_has_the_name_already_gets_no_rights() -> None:
    Group.objects.all().delete()
    Group.objects.create(name="Reviewers")
    make_roles()
    assert not Group.objects.get(name="Reviewers").permissions.exists()
    assert Group.objects.count() == 3


def test_permissions_that_do_not_exist_yet_are_made_as_migrating_would() -> None:
    before = set(Permission.objects.values_list("content_type", "codename", "name"))
    Permission.objects.filter(codename__in=set().union(*ROLES.values())).delete()
    Group.objects.all().delete()
    make_roles()
    assert set(Permission.objects.values_list("content_type", "codename", "name")) == before
    assert Group.objects.get(name="Operators").permissions.count() == 2


# -- who sees what


@pytest.mark.parametrize(
    ("codenames", "opened", "refused"),
    [
        ((), set(), {"/ops/", "/ops/analytics/"}),
        (("view_fleet",), {"/ops/"}, {"/ops/analytics/"}),
        (("view_analytics",), {"/ops/analytics/"}, {"/ops/"}),
        (("view_fleet", "view_analytics"), {"/ops/", "/ops/analytics/"}, set()),
        (("view_transcript",), set(), {"/ops/", "/ops/analytics/"}),
        (("view_auditentry",), {"/ops/audit/"}, {"/ops/", "/ops/analytics/"}),
    ],
)
def test_a_permission_opens_its_page_without_being_staff(
    olga: User, redis: redis_py.Redis, codenames: tuple[str, ...], opened: set[str], refused: set[str]
) -> None:
    client = signed_in(granted(olga, *codenames))
    assert {path for path in opened | refused if client.get(path).status_code == 200} == opened
    assert {client.get(path).status_code for path in refused} <= {403}
    assert client.get("/admin/").status_code == 302, "is_staff alone opens the admin"
    menu = client.get("/prompts/").content.decode()
    for path in ("/ops/", "/ops/analytics/"):
        assert (f'href="{path}"' in menu) is (path in opened), path


def test_staff_without_a_role_keep_the_fleet_and_the_admin(sam: User, redis: redis_py.Redis) -> None:
    client = signed_in(sam)
    assert client.get("/ops/").status_code == 200
    assert client.get("/admin/").status_code == 200
    assert client.get("/ops/analytics/").status_code == 403
    menu = client.get("/prompts/").content.decode()
    assert 'href="/ops/"' in menu
    assert 'href="/ops/analytics/"' not in menu


def test_the_menu_of_the_chat_shows_only_what_opens(olga: User, sam: User, redis: redis_py.Redis) -> None:
    shut = {"/ops/", "/ops/analytics/", "/ops/audit/", "/admin/"}

    def check(user: User, opened: set[str]) -> None:
        client = signed_in(user)
        links = set(re.findall(r'href="([^"]+)"', client.get("/").content.decode())) & shut
        assert links == opened
        assert {path for path in shut if client.get(path).status_code == 200} == opened

    check(olga, set())
    check(sam, {"/ops/", "/admin/"})
    check(granted(olga, "view_analytics"), {"/ops/analytics/"})
    check(granted(olga, "view_auditentry"), {"/ops/analytics/", "/ops/audit/"})


def test_a_role_ends_with_the_account_and_with_the_group(olga: User) -> None:
    group = Group.objects.create(name="ops")
    group.permissions.add(Permission.objects.get(codename="view_analytics"))
    olga.groups.add(group)
    client = signed_in(olga)
    assert client.get("/ops/analytics/").status_code == 200
    olga.groups.remove(group)
    assert client.get("/ops/analytics/").status_code == 403
    granted(olga, "view_analytics")
    people.deactivate(olga)
    assert client.get("/ops/analytics/").status_code == 302


@pytest.mark.parametrize(
    ("flags", "codenames", "trusted"),
    [
        ({}, (), False),
        ({}, ("change_user",), False),
        ({"is_staff": True}, (), True),
        ({"is_superuser": True}, (), True),
        ({}, ("view_fleet",), True),
        ({}, ("view_transcript",), True),
    ],
)
def test_trusted_is_who_sees_more_than_their_own(
    alice: User, flags: dict[str, bool], codenames: tuple[str, ...], trusted: bool
) -> None:
    User.objects.filter(pk=alice.pk).update(**flags)
    assert roles.is_trusted(granted(alice, *codenames)) is trusted


# -- people in the admin


def act(client: Client, action: str, *users: User, **more: str) -> Any:
    marked = {"action": action, "_selected_action": [str(user.pk) for user in users], **more}
    return client.post(LIST, marked, follow=True)


def answering(user: User) -> Generation:
    conversation = Conversation.objects.create(owner=user)
    message = Message.objects.create(conversation=conversation, role="assistant")
    return Generation.objects.create(user=user, message=message, model="m")


def test_the_list_tells_of_groups_sign_in_and_tokens_of_this_month(admin: Client, alice: User) -> None:
    alice.groups.add(Group.objects.create(name="red"), Group.objects.create(name="blue"))
    today = timezone.localdate()
    for day, tokens in ((today, 1_000), (today.replace(day=1), 234), (today.replace(day=1, year=today.year - 1), 7)):
        UsageDay.objects.create(user=alice, day=day, model=f"m{tokens}", source="chat", charged_tokens=tokens)
    page = admin.get(LIST).content.decode()
    assert '<td class="field-tokens_this_month">1,234</td>' in page
    assert '<td class="field-group_names">blue, red</td>' in page
    for column in ("Last login", "Second factor", "Active", "Staff status"):
        assert column in page
    for query in (
        {"is_active__exact": "1"},
        {"is_staff__exact": "0"},
        {"groups__id__exact": str(alice.groups.all()[0].pk)},
    ):
        assert ">alice</a>" in admin.get(LIST, query).content.decode(), query
    assert ">alice</a>" not in admin.get(LIST, {"is_active__exact": "0"}).content.decode()


def test_the_list_takes_the_same_queries_for_many_people(admin: Client, django_assert_max_num_queries: Any) -> None:
    group = Group.objects.create(name="red")
    for number in range(40):
        user = User.objects.create_user(f"person-{number}")
        user.groups.add(group)
        UsageDay.objects.create(user=user, day=timezone.localdate(), model="m", source="chat", charged_tokens=5)
    with django_assert_max_num_queries(20):
        assert "person-39" in admin.get(LIST).content.decode()


def test_deactivated_people_are_out_at_once(admin: Client, alice: User, redis: redis_py.Redis) -> None:
    theirs = signed_in(alice)
    assert theirs.get("/prompts/").status_code == 200
    session_key = theirs.session.session_key
    assert session_key
    generation, other = answering(alice), answering(User.objects.create_user("bob"))
    api = Generation.objects.create(user=alice, model="m", source="api")
    _key, secret = ApiKey.create(alice)
    assert authenticate(f"Bearer {secret}").user == alice
    assert access.is_signed_in(session_key, alice.pk)

    assert "1 person deactivated." in act(admin, "deactivate", alice).content.decode()
    alice.refresh_from_db()
    assert not alice.is_active
    assert not access.is_signed_in(session_key, alice.pk)
    assert theirs.get("/prompts/").status_code == 302
    with pytest.raises(Unauthorized):
        authenticate(f"Bearer {secret}")
    for row, stopped in ((generation, True), (api, True), (other, False)):
        row.refresh_from_db()
        assert row.stop_requested is stopped
    entry = AuditEntry.objects.get(action="account.changed", subject=alice)
    assert entry.actor_name == "root"

    assert "1 person activated." in act(admin, "activate", alice).content.decode()
    alice.refresh_from_db()
    assert alice.is_active
    assert not access.is_signed_in(session_key, alice.pk), "an ended session stays ended"
    assert theirs.get("/prompts/").status_code == 302


def test_taking_the_tick_away_in_the_form_does_the_same(admin: Client, alice: User, redis: redis_py.Redis) -> None:
    generation = answering(alice)
    path = f"{LIST}{alice.pk}/change/"
    page = admin.get(path)
    form = {
        **dict(re.findall(r'name="([\w-]+-(?:TOTAL|INITIAL)_FORMS)" value="(\d+)"', page.content.decode())),
        "username": "alice",
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
        "rules-0-user": str(alice.pk),
        "rules-0-tokens_per_day": "500",
    }
    saved = admin.post(path, form)
    assert saved.status_code == 302, saved.context["errors"] if saved.context else saved.content
    alice.refresh_from_db()
    generation.refresh_from_db()
    assert (alice.is_active, generation.stop_requested) == (False, True)
    assert rules_of(alice).tokens_per_day == 500, "and the person's own rules are there, too"


def test_nobody_deactivates_themselves(admin: Client, root: User, alice: User, redis: redis_py.Redis) -> None:
    page = act(admin, "deactivate", root, alice).content.decode()
    assert "Left as it was: root; nobody deactivates themselves." in page
    assert "1 person deactivated." in page
    root.refresh_from_db()
    assert root.is_active


def test_people_are_put_into_a_group_and_taken_out(admin: Client, alice: User, olga: User) -> None:
    red = Group.objects.create(name="red")
    GroupRules.objects.create(group=red, retention_days=30)
    olga.groups.add(red)
    asked = act(admin, "add_to_group", alice, olga)
    assert "red (conversations stay 30 days)" in asked.content.decode()
    assert not alice.groups.exists()
    refused = act(admin, "add_to_group", alice, olga, chosen="1", group="")
    assert refused.status_code == 400
    assert "This field is required." in refused.content.decode()
    done = act(admin, "add_to_group", alice, olga, chosen="1", group=str(red.pk))
    assert "1 person added to red." in done.content.decode()
    assert set(red.user_set.all()) == {alice, olga}  # type: ignore[attr-defined]
    assert AuditEntry.objects.filter(action="account.changed", subject=alice, actor_name="root").count() == 1
    done = act(admin, "remove_from_group", alice, olga, chosen="1", group=str(red.pk))
    assert "2 people removed from red." in done.content.decode()
    assert not red.user_set.exists()  # type: ignore[attr-defined]


def test_deleting_people_here_still_erases_them(admin: Client, alice: User, redis: redis_py.Redis) -> None:
    """Several apps refine the page of people; the last one leaves the others' part as it is."""
    assert isinstance(site.get_model_admin(User), ErasingUserAdmin)
    assert admin.post(f"{LIST}{alice.pk}/delete/", {"post": "yes"}).status_code == 302
    entry = AuditEntry.objects.get(action="account.deleted")
    assert entry.subject_name not in ("", "alice"), "a pseudonym"


# -- staff who may change people are not thereby superusers


@pytest.fixture
def clerk(sam: User) -> Client:
    return signed_in(granted(sam, "view_user", "change_user", "delete_user"))


def test_who_is_no_superuser_gives_nobody_rights(clerk: Client, sam: User) -> None:
    group = Group.objects.create(name="red")
    assert act(clerk, "add_to_group", sam, chosen="1", group=str(group.pk)).status_code == 200
    assert not sam.groups.exists()
    path = f"{LIST}{sam.pk}/change/"
    form = {"username": "sam", "is_active": "on", "is_superuser": "on", "groups": [str(group.pk)]}
    form |= {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00", "first_name": "Samuel"}
    counts = re.findall(r'name="([\w-]+-(?:TOTAL|INITIAL)_FORMS)" value="(\d+)"', clerk.get(path).content.decode())
    assert clerk.post(path, {**form, **dict(counts)}).status_code == 302
    sam.refresh_from_db()
    assert sam.first_name == "Samuel", "the rest was taken"
    assert (sam.is_superuser, sam.is_staff, sam.groups.exists()) == (False, True, False)


def test_who_is_no_superuser_leaves_superusers_alone(
    clerk: Client, root: User, alice: User, redis: redis_py.Redis
) -> None:
    for action in ("deactivate", "sign_out_everywhere", "remove_second_factor"):
        page = act(clerk, action, root).content.decode()
        assert "Left as it was: root; only a superuser changes one." in page, action
    act(clerk, "delete_selected", root, post="yes")
    assert User.objects.get(pk=root.pk).is_active
    for path in ("change/", "password/", "delete/"):
        assert clerk.post(f"{LIST}{root.pk}/{path}", {"username": "mine"}).status_code == 403, path
    assert "1 person deactivated." in act(clerk, "deactivate", alice).content.decode()
