"""How ann signs in and sets up a second factor, and how the rules ask for one, in tests of it."""

from __future__ import annotations

from typing import Any

from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from django.contrib.auth.models import Group
from django.test import Client

from chatsite.accounts.models import User
from chatsite.rules.models import GroupRules, SiteRules

SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
PASSWORD = "correct horse 7"
SETUP = "/accounts/2fa/totp/activate/"


def sign_in(client: Client, name: str = "ann", to: str = "/") -> Any:
    return client.post(f"/accounts/login/?next={to}", {"login": name, "password": PASSWORD})


def enrol(user: User) -> list[str]:
    """The recovery codes."""
    TOTP.activate(user, SECRET)
    return list(RecoveryCodes.activate(user).get_unused_codes())


def ask_of(whom: str) -> None:
    SiteRules.objects.update_or_create(id=1, defaults={"two_factor": whom})


def ask_of_group(*members: User, name: str = "careful") -> Group:
    group = Group.objects.create(name=name)
    GroupRules.objects.create(group=group, requires_two_factor=True)
    group.user_set.add(*members)  # type: ignore[attr-defined]
    return group


def is_signed_in(client: Client) -> bool:
    return client.get("/accounts/sessions/").status_code == 200
