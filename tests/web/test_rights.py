"""Nobody changes somebody who holds rights that they lack, on whatever way: pages, actions, forged requests, groups.

helen is the help desk: staff who may change people, addresses, keys and groups, and nothing else.
"""

from __future__ import annotations

import getpass
import io
import re
import sys
from typing import Any

import pytest
import redis as redis_py
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import Group, Permission
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.test import Client

from chatsite.accounts import rights
from chatsite.accounts.models import ApiKey, User
from chatsite.audit.models import Action, AuditEntry

USERS = "/admin/accounts/user/"
NEW = "another battery 9"
HELPS_WITH = ("user", "emailaddress", "socialaccount", "apikey", "group")
BEYOND = ("rita", "audrey", "olga", "former", "root")  # of these helen lacks a right; the last but one is switched off
WITHIN = ("alice", "sam", "helga")

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


@pytest.fixture
def cast() -> dict[str, User]:
    """Who is who: see the names below. Reviewers hold their right by a group, auditors directly."""
    people = {name: User.objects.create_user(name, email=f"{name}@example.org") for name in (*WITHIN, *BEYOND, "helen")}
    reviewers, _ = Group.objects.get_or_create(name="Reviewers")
    reviewers.permissions.set(Permission.objects.filter(codename="view_transcript"))
    helpers = Permission.objects.filter(content_type__model__in=HELPS_WITH)
    for name in ("rita", "former"):
        people[name].groups.add(reviewers)
    people["audrey"].user_permissions.set(Permission.objects.filter(codename="view_auditentry"))
    people["olga"].user_permissions.set(Permission.objects.filter(codename__in=("view_fleet", "view_analytics")))
    for name in ("helen", "helga"):
        people[name].user_permissions.set(helpers)
    User.objects.filter(username__in=("sam", "helen", "helga")).update(is_staff=True)
    User.objects.filter(username="root").update(is_staff=True, is_superuser=True)
    User.objects.filter(username="former").update(is_active=False)
    return {name: User.objects.get(pk=user.pk) for name, user in people.items()}


@pytest.fixture
def desk(cast: dict[str, User]) -> Client:
    return signed_in(cast["helen"])


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def act(client: Client, action: str, *rows: Any, at: str = USERS, **more: str) -> str:
    marked = {"action": action, "_selected_action": [str(row.pk) for row in rows], **more}
    return client.post(at, marked, follow=True).content.decode()  # type: ignore[no-any-return]


def state_of(user: User) -> dict[str, Any]:
    """Everything of an account that lets somebody in or out."""
    row = User.objects.filter(pk=user.pk).values().first()
    return {
        "row": {name: value for name, value in (row or {}).items() if name != "last_login"},
        "groups": sorted(user.groups.values_list("name", flat=True)),
        "permissions": sorted(user.user_permissions.values_list("codename", flat=True)),
        "factors": Authenticator.objects.filter(user=user).count(),
        "sessions": UserSession.objects.filter(user=user).count(),
        "keys": list(user.api_keys.values("name", "revoked_at", "expires_at")),
        "addresses": list(EmailAddress.objects.filter(user=user).values("email", "verified", "primary")),
        "outside": SocialAccount.objects.filter(user=user).count(),
    }


def furnish(user: User) -> None:
    """One of everything that belongs to an account."""
    Authenticator.objects.create(user=user, type="totp", data={})
    UserSession.objects.create(user=user, ip="192.0.2.1", session_key=f"none-{user.username}")
    ApiKey.create(user, "mine")
    EmailAddress.objects.create(user=user, email=f"{user.username}@example.org")
    SocialAccount.objects.create(user=user, provider="github", uid=user.username)


# -- the rule


@pytest.mark.parametrize(
    ("actor", "may"),
    [
        ("alice", {"alice"}),
        ("sam", {"alice", "sam"}),
        ("helen", {"alice", "sam", "helga", "helen"}),
        ("rita", {"alice", "rita", "former"}),
        ("audrey", {"alice", "audrey"}),
        ("olga", {"alice", "olga"}),
        ("former", set()),
        ("root", {*WITHIN, *BEYOND, "helen"}),
    ],
)
def test_one_changes_whoever_holds_no_right_that_one_lacks(cast: dict[str, User], actor: str, may: set[str]) -> None:
    assert {name for name, person in cast.items() if rights.may_change(cast[actor], person)} == may
    assert set(rights.beyond(cast[actor]).values_list("username", flat=True)) == set(cast) - may


def test_a_right_that_one_holds_by_a_group_counts_as_ones_own(cast: dict[str, User]) -> None:
    cast["helen"].groups.add(Group.objects.get(name="Reviewers"))
    assert rights.may_change(cast["helen"], cast["rita"])
    assert not rights.may_change(cast["rita"], cast["helen"])


# -- one person


@pytest.mark.parametrize("name", ["audrey", "former", "root"])
def test_a_page_of_somebody_with_more_rights_is_to_look_at_and_says_why(
    desk: Client, cast: dict[str, User], name: str
) -> None:
    page = desk.get(f"{USERS}{cast[name].pk}/change/")
    assert page.status_code == 200
    assert "This cannot be changed here" in page.content.decode()
    assert 'name="_save"' not in page.content.decode()
    assert 'name="email"' not in page.content.decode()
    assert desk.get(f"{USERS}{cast[name].pk}/password/").status_code == 403


@pytest.mark.parametrize("name", ["rita", "former"])
def test_a_forged_request_is_refused_recorded_and_changes_nothing(
    desk: Client, cast: dict[str, User], name: str
) -> None:
    person = cast[name]
    furnish(person)
    before = state_of(person)
    key, address = person.api_keys.get(), EmailAddress.objects.get(user=person)
    outside = SocialAccount.objects.get(user=person)
    own = EmailAddress.objects.create(user=cast["helen"], email="helen@example.net", verified=True)
    form = {"username": name, "email": "helen@example.net", "is_active": "on", "password": "x"}
    tries = [
        (f"{USERS}{person.pk}/change/", form),
        (f"{USERS}{person.pk}/password/", {"usable_password": "true", "password1": NEW, "password2": NEW}),
        (f"{USERS}{person.pk}/delete/", {"post": "yes"}),
        (f"/admin/accounts/apikey/{key.pk}/change/", {"name": "theirs", "expires_at_0": "", "expires_at_1": ""}),
        (f"/admin/accounts/apikey/{key.pk}/delete/", {"post": "yes"}),
        (
            f"/admin/account/emailaddress/{address.pk}/change/",
            {"user": str(cast["helen"].pk), "email": "x@example.net"},
        ),
        (f"/admin/account/emailaddress/{address.pk}/delete/", {"post": "yes"}),
        (
            f"/admin/account/emailaddress/{own.pk}/change/",
            {"user": str(person.pk), "email": own.email, "verified": "on"},
        ),
        ("/admin/account/emailaddress/add/", {"user": str(person.pk), "email": "h@example.net", "verified": "on"}),
        (f"/admin/socialaccount/socialaccount/{outside.pk}/change/", {"user": str(cast["helen"].pk), "uid": "x"}),
        (
            "/admin/socialaccount/socialaccount/add/",
            {"user": str(person.pk), "provider": "github", "uid": "9", "extra_data": '{"id": 9}'},
        ),
    ]
    for path, data in tries:
        known = AuditEntry.objects.count()
        assert desk.post(path, data).status_code == 403, path
        entry = AuditEntry.objects.latest("id")
        assert AuditEntry.objects.count() == known + 1, path
        assert (entry.action, entry.actor_name, entry.subject) == (Action.CHANGE_REFUSED, "helen", person), path
    assert state_of(person) == before


@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize("across", ["0", "yes"])  # only those that are marked; or all, by whichever word
def test_an_action_leaves_out_who_is_beyond_reach_and_says_so(desk: Client, cast: dict[str, User], across: str) -> None:
    marked = [cast["alice"], *(cast[name] for name in BEYOND)]
    for user in marked:
        furnish(user)
    before = {user.pk: state_of(user) for user in marked}
    group = Group.objects.create(name="pool")
    for action, at, attribute in (
        ("make_verified", "/admin/account/emailaddress/", "emailaddress_set"),
        ("delete_selected", "/admin/account/emailaddress/", "emailaddress_set"),
        ("delete_selected", "/admin/socialaccount/socialaccount/", "socialaccount_set"),
        ("revoke", "/admin/accounts/apikey/", "api_keys"),
        ("delete_selected", "/admin/accounts/apikey/", "api_keys"),
        ("sign_out_everywhere", USERS, ""),
        ("remove_second_factor", USERS, ""),
        ("add_to_group", USERS, ""),
        ("deactivate", USERS, ""),
        ("activate", USERS, ""),
        ("delete_selected", USERS, ""),
    ):
        desk.force_login(cast["helen"])  # she may have ended her own sessions
        rows = [getattr(user, attribute).get() if attribute else user for user in marked]
        known = state_of(cast["alice"])
        told = act(desk, action, *rows, at=at, post="yes", select_across=across, chosen="1", group=str(group.pk))
        for user in marked[1:]:
            assert state_of(user) == before[user.pk], (action, at, user)
        if action == "add_to_group":  # which superusers alone do
            assert not group.user_set.exists()  # type: ignore[attr-defined]
            continue
        assert state_of(cast["alice"]) != known, (action, at)
        if "Log out" in told:  # helen did not just sign herself out
            assert "only a superuser changes one." in told, (action, at)
            assert "nobody changes whoever holds rights that they lack." in told, (action, at)


def test_the_help_desk_helps_everybody_else(desk: Client, cast: dict[str, User], redis: redis_py.Redis) -> None:
    for name in WITHIN:
        form = {"usable_password": "true", "password1": NEW, "password2": NEW}
        assert desk.post(f"{USERS}{cast[name].pk}/password/", form).status_code == 302, name
        assert User.objects.get(username=name).check_password(NEW)
        page = desk.get(f"{USERS}{cast[name].pk}/change/").content.decode()
        assert 'name="email"' in page
        assert "This cannot be changed here" not in page
    assert "1 person deactivated." in act(desk, "deactivate", cast["alice"])
    assert not AuditEntry.objects.filter(action=Action.CHANGE_REFUSED).exists()


@pytest.mark.parametrize(
    ("command", "action"), [("createapikey", Action.KEY_CREATED), ("changepassword", Action.PASSWORD)]
)
def test_a_command_may_and_is_recorded_by_its_name(
    cast: dict[str, User], monkeypatch: pytest.MonkeyPatch, command: str, action: str
) -> None:
    """Whoever runs it owns the machine. No account can have such a name: it has a space."""
    monkeypatch.setattr(sys, "argv", ["/srv/site/manage.py", command, "root"])
    monkeypatch.setattr(getpass, "getpass", lambda prompt="": NEW)
    call_command(command, "root", stdout=io.StringIO(), stderr=io.StringIO())
    entry = AuditEntry.objects.get(action=action)
    assert (entry.actor, entry.actor_name, entry.subject) == (None, f"command {command}", cast["root"])
    with pytest.raises(ValidationError):
        User(username=entry.actor_name).full_clean(exclude=["password"])


# -- groups


def group_form(desk: Client, path: str, **fields: Any) -> dict[str, Any]:
    page = desk.get(path).content.decode()
    return {**dict(re.findall(r'name="([\w-]+-(?:TOTAL|INITIAL)_FORMS)" value="(\d+)"', page)), **fields}


def test_a_group_that_gives_more_than_one_has_is_not_changed(desk: Client, cast: dict[str, User]) -> None:
    """Neither what it gives, nor its name, which a provider's groups go by, nor its members by its end."""
    group = Group.objects.get(name="Reviewers")
    path = f"/admin/auth/group/{group.pk}/"
    assert "This cannot be changed here" in desk.get(f"{path}change/").content.decode()
    assert desk.post(f"{path}change/", group_form(desk, f"{path}change/", name="Everybody")).status_code == 403
    assert desk.post(f"{path}delete/", {"post": "yes"}).status_code == 403
    told = act(desk, "delete_selected", group, at="/admin/auth/group/", post="yes")
    assert "Left as it was: Reviewers; nobody changes" in told
    assert Group.objects.get(pk=group.pk).name == "Reviewers"
    entry = AuditEntry.objects.filter(action=Action.CHANGE_REFUSED).latest("id")
    assert (entry.actor_name, entry.subject, entry.target) == ("helen", None, "group Reviewers")


def test_a_group_with_a_member_of_more_rights_is_not_changed(desk: Client, cast: dict[str, User]) -> None:
    group = Group.objects.create(name="mixed")
    cast["audrey"].groups.add(group)
    path = f"/admin/auth/group/{group.pk}/"
    assert desk.post(f"{path}change/", {"name": "x"}).status_code == 403
    assert desk.post(f"{path}delete/", {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("is_new", [False, True])
def test_nobody_gives_a_group_a_permission_that_they_lack(desk: Client, cast: dict[str, User], is_new: bool) -> None:
    """Least of all a group that they are in."""
    group = Group.objects.create(name="desk")
    cast["helen"].groups.add(group)
    read = Permission.objects.get(codename="view_transcript")
    held = Permission.objects.get(codename="change_user")
    path = "/admin/auth/group/add/" if is_new else f"/admin/auth/group/{group.pk}/change/"
    page = desk.get(path).content.decode()
    assert f'value="{held.pk}"' in page
    assert f'<option value="{read.pk}"' not in page
    assert "You can give those that you hold yourself." in page
    name = "readers" if is_new else "desk"
    forged = group_form(desk, path, name=name, permissions=[str(held.pk), str(read.pk)])
    assert desk.post(path, forged).status_code == 403
    assert not Group.objects.filter(permissions=held).exists()
    assert Group.objects.filter(name="readers").count() == 0
    assert desk.post(path, group_form(desk, path, name=name, permissions=[str(held.pk)])).status_code == 302
    assert Group.objects.get(name=name).permissions.get() == held
