"""Deeds that the audit log must tell: coming in and going, passwords, addresses, factors and outside accounts."""

from __future__ import annotations

import re
from collections.abc import Callable

from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from chatsite.accounts.models import User
from chatsite.audit.models import Action
from tests.totp import code
from tests.web.auditing import OTHER_PASSWORD, PASSWORD, TOTP_SECRET, Deeds, World, admin_user_form, second_address

deeds = Deeds()


# -- in and out


@deeds.add((Action.SIGNED_IN, "alice", "", ""))
def signing_in(world: World) -> Callable[[], object]:
    return lambda: world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})


@deeds.add((Action.SIGN_IN_FAILED, "", "alice", ""))
def a_wrong_password(world: World) -> Callable[[], object]:
    return lambda: world.browser().post("/accounts/login/", {"login": "ALICE", "password": OTHER_PASSWORD})


@deeds.add((Action.SIGN_IN_FAILED, "", "nobody" * 25, ""))
def a_name_that_nobody_has(world: World) -> Callable[[], object]:
    return lambda: world.browser().post("/accounts/login/", {"login": "nobody" * 25, "password": PASSWORD})


@deeds.add((Action.SIGN_IN_FAILED, "alice", "", ""))
def a_wrong_password_when_asked_again(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    return lambda: page.post("/accounts/reauthenticate/", {"password": OTHER_PASSWORD})


@deeds.add((Action.SIGN_IN_FAILED, "", "alice", ""))
def an_account_that_is_switched_off(world: World) -> Callable[[], object]:
    User.objects.filter(pk=world.alice.pk).update(is_active=False)
    return lambda: world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})


@deeds.add((Action.SIGNED_OUT, "alice", "", ""))
def signing_out(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    return lambda: page.post("/accounts/logout/")


@deeds.add((Action.CREATED, "carol", "", ""), (Action.SIGNED_IN, "carol", "", ""))
def signing_up(world: World) -> Callable[[], object]:
    form = {"username": "carol", "email": "carol@example.org", "password1": PASSWORD, "password2": PASSWORD}
    return lambda: world.browser().post("/accounts/signup/", form)


@deeds.add((Action.SIGNED_IN, "alice", "", ""))
def signing_in_with_a_hash_of_an_older_kind(world: World) -> Callable[[], object]:
    old = PBKDF2PasswordHasher()
    world.secrets.append(old.encode(PASSWORD, "salt", 1000))
    User.objects.filter(pk=world.alice.pk).update(password=world.secrets[-1])

    def do() -> None:
        world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})
        assert User.objects.get(username="alice").password.startswith("md5$")

    return do


@deeds.add((Action.SESSION_ENDED, "alice", "", ""))
def ending_ones_other_sessions(world: World) -> Callable[[], object]:
    for _ in range(2):
        world.browser().post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    page = world.browser()
    page.post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    return lambda: page.post("/accounts/sessions/")


# -- one's account


@deeds.add((Action.PASSWORD, "alice", "", ""))
def a_new_password(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    form = {"oldpassword": PASSWORD, "password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD}
    return lambda: page.post("/accounts/password/change/", form)


@deeds.add((Action.PASSWORD, "alice", "", ""))
def a_new_password_by_a_link_from_the_mail(world: World) -> Callable[[], object]:
    page = world.browser()
    token = default_token_generator.make_token(world.alice)
    world.secrets.append(token)
    address = f"/accounts/password/reset/key/{user_pk_to_url_str(world.alice)}-{token}/"
    entry = page.get(address, follow=True).redirect_chain[-1][0]
    return lambda: page.post(entry, {"password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD})


@deeds.add((Action.PASSWORD, "root", "alice", ""))
def a_password_that_the_admin_gives(world: World) -> Callable[[], object]:
    page = world.browser(world.root)
    form = {"usable_password": "true", "password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD}
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/password/", form)


@deeds.add((Action.PASSWORD, "", "alice", ""), ip=None)
def a_password_that_is_switched_off_by_code(world: World) -> Callable[[], object]:
    def do() -> None:
        world.alice.set_unusable_password()
        world.alice.save(update_fields=["password"])

    return do


@deeds.add((Action.EMAIL, "alice", "", ""))
def a_further_address(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    return lambda: page.post("/accounts/email/", {"action_add": "", "email": "second@example.org"})


@deeds.add((Action.EMAIL, "alice", "", ""))
def another_main_address(world: World) -> Callable[[], object]:
    page, second = world.browser(world.alice), second_address(world)
    return lambda: page.post("/accounts/email/", {"action_primary": "", "email": second.email})


@deeds.add((Action.EMAIL, "alice", "", ""))
def an_address_removed(world: World) -> Callable[[], object]:
    page, second = world.browser(world.alice), second_address(world)
    return lambda: page.post("/accounts/email/", {"action_remove": "", "email": second.email})


@deeds.add((Action.EMAIL, "root", "alice", ""))
def an_address_that_the_admin_confirms(world: World) -> Callable[[], object]:
    page, second = world.browser(world.root), second_address(world)
    marked = {"action": "make_verified", "_selected_action": [str(second.pk)]}
    return lambda: page.post("/admin/account/emailaddress/", marked)


@deeds.add((Action.EMAIL, "root", "alice", ""))
def an_address_that_the_admin_changes(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice, email="new@example.org")
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form)


@deeds.add((Action.FACTOR_ADDED, "alice", "", "totp"))
def setting_up_a_second_factor(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    found = re.search(r'class="secret">([A-Z2-7]{32})<', page.get("/accounts/2fa/totp/activate/").content.decode())
    assert found
    world.secrets.append(found[1])
    return lambda: page.post("/accounts/2fa/totp/activate/", {"code": code(found[1])})


@deeds.add((Action.FACTOR_REMOVED, "alice", "", "totp"))
def removing_ones_second_factor(world: World) -> Callable[[], object]:
    page = world.browser(world.alice)
    world.enrol()
    page.post("/accounts/2fa/reauthenticate/", {"code": code(TOTP_SECRET)})

    def do() -> None:
        page.post("/accounts/2fa/totp/deactivate/")
        assert not Authenticator.objects.exists()

    return do


@deeds.add((Action.FACTOR_REMOVED, "root", "alice", "totp"))
def a_second_factor_that_the_admin_removes(world: World) -> Callable[[], object]:
    page = world.browser(world.root)
    world.enrol()
    marked = {"action": "remove_second_factor", "_selected_action": [str(world.alice.pk)]}

    def do() -> None:
        page.post("/admin/accounts/user/", marked)
        assert not Authenticator.objects.exists()

    return do


@deeds.add((Action.SIGN_IN_FAILED, "", "alice", ""))
def a_wrong_second_factor(world: World) -> Callable[[], object]:
    world.enrol()
    page = world.browser()
    page.post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    return lambda: page.post("/accounts/2fa/authenticate/", {"code": "123"})


@deeds.add((Action.CONNECTED, "", "alice", "github"), ip=None)
def an_outside_account_connected(world: World) -> Callable[[], object]:
    return lambda: SocialAccount.objects.create(user=world.alice, provider="github", uid="4711")


@deeds.add((Action.DISCONNECTED, "", "alice", "github"), ip=None)
def an_outside_account_disconnected(world: World) -> Callable[[], object]:
    connected = SocialAccount.objects.create(user=world.alice, provider="github", uid="4711")
    return connected.delete
