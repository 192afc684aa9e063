"""A second factor in Django's admin, which has no way in of its own and takes a lost factor away."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.signals import authenticator_removed
from django.contrib.auth.models import Permission
from django.test import Client

from chatsite.accounts.models import User
from tests.totp import code
from tests.web.enrolling import PASSWORD, SECRET, SETUP, ask_of, enrol, is_signed_in, sign_in

pytestmark = pytest.mark.usefixtures("site", "redis")  # limits are counted in Valkey, which is emptied


def test_the_admin_has_no_way_in_of_its_own(ann: User) -> None:
    User.objects.update(is_staff=True, is_superuser=True)
    enrol(ann)
    client = Client()
    asked = client.get("/admin/", follow=True)
    assert asked.redirect_chain[-1][0] == "/accounts/login/?next=%2Fadmin%2F"
    bypass = client.post("/admin/login/?next=/admin/", {"username": "ann", "password": PASSWORD})
    assert bypass["Location"] == "/accounts/login/?next=%2Fadmin%2F"
    assert not is_signed_in(client)
    assert client.get("/admin/password_change/").status_code == 302
    assert sign_in(client, to="/admin/")["Location"] == "/accounts/2fa/authenticate/"
    assert client.get("/admin/").status_code == 302
    assert client.post("/accounts/2fa/authenticate/", {"code": code(SECRET)})["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200
    assert client.get("/admin/password_change/")["Location"] == "/accounts/password/change/"


def test_the_admin_is_closed_to_who_lacks_a_factor_and_to_who_is_not_staff(page: Client) -> None:
    assert page.get("/admin/login/").status_code == 403
    User.objects.update(is_staff=True, is_superuser=True)
    assert page.get("/admin/").status_code == 200
    ask_of("staff")
    assert page.get("/admin/")["Location"] == SETUP
    assert page.get("/admin/accounts/user/")["Location"] == SETUP


def test_an_admin_takes_a_lost_factor_away_and_sees_no_secret(ann: User, sam: User) -> None:
    enrol(ann)
    admin = Client()
    admin.force_login(sam)
    for path in ("/admin/mfa/authenticator/", "/admin/usersessions/usersession/"):
        assert admin.get(path).status_code == 404
    for path in ("/admin/accounts/user/", f"/admin/accounts/user/{ann.pk}/change/"):
        assert SECRET not in admin.get(path).content.decode()
    heard: list[tuple[User, str]] = []

    def hear(user: User, authenticator: Authenticator, **_: Any) -> None:
        heard.append((user, authenticator.type))

    authenticator_removed.connect(hear)
    try:
        chosen = {"action": "remove_second_factor", "_selected_action": [str(ann.pk)]}
        assert b"1 second factor(s) taken away" in admin.post("/admin/accounts/user/", chosen, follow=True).content
    finally:
        authenticator_removed.disconnect(hear)
    assert sorted(heard, key=str) == [(ann, "recovery_codes"), (ann, "totp")]
    assert sign_in(Client())["Location"] == "/"


def test_taking_factors_away_needs_the_permission_to_change_people(ann: User, bob: User) -> None:
    enrol(ann)
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    bob.user_permissions.add(Permission.objects.get(codename="view_user"))
    viewer = Client()
    viewer.force_login(bob)
    for action in ("remove_second_factor", "sign_out_everywhere"):
        viewer.post("/admin/accounts/user/", {"action": action, "_selected_action": [str(ann.pk)]})
    assert Authenticator.objects.count() == 2
