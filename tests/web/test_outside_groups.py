"""Groups, and who is staff, follow what the other place claims of a person where the site is set so."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import Group
from django.test import Client

from chatsite.accounts.models import User
from chatsite.accounts.outside import groups
from tests.oidc_provider import Provider
from tests.web.coming_in import come_in, local, signed_in, who

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


@pytest.mark.parametrize(
    ("claims", "claim", "names"),
    [
        ({"groups": ["b", "a", "b"]}, "groups", ["a", "b"]),
        ({"groups": "only"}, "groups", ["only"]),
        ({"groups": [1, None, {"x": 1}, "a"]}, "groups", ["a"]),
        ({"groups": 7}, "groups", []),
        ({"groups": ["a\x00", "b"]}, "groups", ["b"]),
        ({"groups": {"a": 1}}, "groups", []),
        ({}, "groups", []),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", ["a"]),
        ({"realm_access": ["a"]}, "realm_access.roles", []),
        ({"https://corp.example/groups": ["a"]}, "https://corp.example/groups", ["a"]),
    ],
)
def test_groups_are_read_from_the_claim(claims: dict[str, Any], claim: str, names: list[str]) -> None:
    assert groups.named(claims, claim) == names


def test_groups_follow_the_claim_at_each_sign_in(outside: Any, provider: Provider) -> None:
    for name in ("writers", "readers", "local"):
        Group.objects.create(name=name)
    before = set(Group.objects.values_list("name", flat=True))

    def told(*names: str) -> tuple[set[str], bool]:
        provider.person["groups"] = list(names)
        client = Client()
        come_in(client)
        assert who(client) == "ann"
        ann = User.objects.get(username="ann")
        return set(ann.groups.values_list("name", flat=True)), ann.is_staff

    assert told("writers") == (set(), False)  # no claim is set, so nothing is touched
    User.objects.get(username="ann").groups.add(Group.objects.get(name="local"))
    outside(groups_claim="groups", staff_group="ops")
    assert told("writers", "unknown here") == ({"writers"}, False)
    assert told("readers", "ops") == ({"readers"}, True)
    assert told("readers") == ({"readers"}, False)
    del provider.person["groups"]
    come_in(Client())
    assert not User.objects.get(username="ann").groups.exists()
    assert set(Group.objects.values_list("name", flat=True)) == before


def test_groups_without_a_staff_group_leave_staff_alone(outside: Any, provider: Provider) -> None:
    outside(groups_claim="groups")
    come_in(Client())
    User.objects.update(is_staff=True)
    come_in(Client())
    assert User.objects.get().is_staff


def test_last_active_superuser_stays_staff(outside: Any, provider: Provider) -> None:
    outside(groups_claim="groups", staff_group="ops")
    come_in(Client())
    User.objects.update(is_staff=True, is_superuser=True)
    local("gone", is_staff=True, is_superuser=True, is_active=False)
    local("powerless", is_superuser=True)
    come_in(Client())
    assert User.objects.get(username="ann").is_staff
    local("sam", is_staff=True, is_superuser=True)
    come_in(Client())
    assert not User.objects.get(username="ann").is_staff


def test_signing_in_with_a_password_touches_no_group(outside: Any) -> None:
    outside(groups_claim="groups", staff_group="ops")
    lee = local("lee", is_staff=True)
    lee.groups.add(Group.objects.create(name="local"))
    SocialAccount.objects.create(user=lee, provider="oidc", uid="1")
    signed_in(lee)
    lee.refresh_from_db()
    assert lee.is_staff
    assert lee.groups.count() == 1
