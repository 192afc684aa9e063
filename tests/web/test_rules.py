"""Rules: what holds for one person of what was decided for site, groups and themselves; the pages that decide it."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation
from chatsite.rules import foresight
from chatsite.rules.effective import Pool, rules_of, site_rules
from chatsite.rules.models import MAX_DAYS, GroupRules, SiteRules, UserRules

SITE = "/admin/rules/siterules/1/change/"
SITE_FORM = {"review_policy": "reason", "two_factor": "nobody"}

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice")


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


@pytest.fixture
def admin(root: User) -> Client:
    client = Client()
    client.force_login(root)
    return client


def group_of(user: User | None, name: str, **rules: Any) -> Group:
    group = Group.objects.create(name=name)
    if rules:
        GroupRules.objects.create(group=group, **rules)
    if user is not None:
        user.groups.add(group)
    return group


def talked(user: User, days_ago: float) -> Conversation:
    """A conversation of theirs, last written in so long ago."""
    conversation = Conversation.objects.create(owner=user)
    Conversation.objects.filter(pk=conversation.pk).update(
        updated_at=timezone.now() - datetime.timedelta(days=days_ago)
    )
    return conversation


# -- what holds


@pytest.mark.parametrize("quota", ["tokens_per_day", "tokens_per_month"])
@pytest.mark.parametrize(
    ("site", "groups", "own", "holds"),
    [
        (None, [], None, None),
        (100, [], None, 100),
        (100, [None], None, 100),
        (100, [50], None, 50),
        (100, [500], None, 500),
        (100, [50, 70, None], None, 70),
        (None, [50], None, 50),
        (100, [500], 20, 20),
        (100, [50], 900, 900),
        (100, [50], 0, 0),
        (100, [0], None, 0),
        (0, [], None, 0),
        (None, [], 5, 5),
    ],
)
def test_own_quota_beats_the_most_generous_group_beats_the_site(
    alice: User, quota: str, site: int | None, groups: list[int | None], own: int | None, holds: int | None
) -> None:
    SiteRules.objects.create(id=1, **{quota: site})
    for number, tokens in enumerate(groups):
        group_of(alice, f"g{number}", **{quota: tokens})
    group_of(None, "of others", **{quota: 10_000})
    UserRules.objects.create(user=alice, **{quota: own})
    other = {"tokens_per_day": "tokens_per_month", "tokens_per_month": "tokens_per_day"}[quota]
    assert getattr(rules_of(alice), quota) == holds
    assert getattr(rules_of(alice), other) is None


@pytest.mark.parametrize(
    ("site", "groups", "holds"),
    [
        (None, [], None),
        (30, [], 30),
        (30, [None], 30),
        (30, [365], 365),
        (30, [365, 7, None], 7),
        (None, [90], 90),
    ],
)
def test_the_shortest_retention_of_the_groups_beats_the_site(
    alice: User, site: int | None, groups: list[int | None], holds: int | None
) -> None:
    SiteRules.objects.create(id=1, retention_days=site)
    for number, days in enumerate(groups):
        group_of(alice, f"g{number}", retention_days=days)
    group_of(None, "of others", retention_days=1)
    assert rules_of(alice).retention_days == holds


@pytest.mark.parametrize(
    ("site", "group", "who", "asked"),
    [
        ("nobody", False, {}, False),
        ("nobody", True, {}, True),
        ("nobody", False, {"is_staff": True}, False),
        ("staff", False, {}, False),
        ("staff", True, {}, True),
        ("staff", False, {"is_staff": True}, True),
        ("staff", False, {"is_superuser": True}, True),
        ("everybody", False, {}, True),
    ],
)
def test_a_second_factor_is_needed_when_anybody_asks_for_it(
    alice: User, site: str, group: bool, who: dict[str, bool], asked: bool
) -> None:
    SiteRules.objects.create(id=1, two_factor=site)
    group_of(alice, "one", requires_two_factor=group)
    group_of(alice, "no rules")
    for name, value in who.items():
        setattr(alice, name, value)
    alice.save()
    assert rules_of(alice).requires_two_factor is asked


@pytest.mark.parametrize("codename", ["view_fleet", "view_analytics", "view_transcript", "view_auditentry"])
def test_whoever_has_a_role_counts_as_staff_for_the_second_factor(alice: User, codename: str) -> None:
    SiteRules.objects.create(id=1, two_factor="staff")
    group_of(alice, "role").permissions.add(Permission.objects.get(codename=codename))
    assert rules_of(alice).requires_two_factor


def test_each_group_with_a_pool_gives_one(alice: User) -> None:
    red = group_of(alice, "red", pool_per_day=10)
    group_of(alice, "white", tokens_per_day=5)
    blue = group_of(alice, "blue", pool_per_day=0, pool_per_month=70)
    group_of(None, "of others", pool_per_day=1)
    assert rules_of(alice).pools == (Pool(red.pk, "red", 10, None), Pool(blue.pk, "blue", 0, 70))


def test_rules_of_a_site_that_decided_nothing_limit_nothing(alice: User) -> None:
    rules = rules_of(alice)
    assert (rules.tokens_per_day, rules.tokens_per_month, rules.retention_days, rules.key_days) == (None,) * 4
    assert rules.pools == ()
    assert not rules.requires_two_factor
    assert site_rules().review_policy == SiteRules.Review.REASON
    assert not SiteRules.objects.exists()


def test_a_change_holds_at_the_next_question(alice: User) -> None:
    assert rules_of(alice).key_days is None
    SiteRules.objects.create(id=1, key_days=30)
    assert rules_of(alice).key_days == 30


# -- what may be decided


@pytest.mark.parametrize(
    ("rules", "field", "words"),
    [
        (SiteRules(id=1, tokens_per_day=11, tokens_per_month=10), "tokens_per_day", "above that of the month, 10"),
        (UserRules(tokens_per_day=2_000, tokens_per_month=1_000), "tokens_per_day", "of a day, 2,000 tokens"),
        (GroupRules(tokens_per_day=11, tokens_per_month=10), "tokens_per_day", "The quota of a day"),
        (GroupRules(pool_per_day=11, pool_per_month=10), "pool_per_day", "The pool of a day"),
        (SiteRules(id=1, retention_days=0), "retention_days", "greater than or equal to 1"),
        (SiteRules(id=1, retention_days=MAX_DAYS + 1), "retention_days", "less than or equal to 36500"),
        (SiteRules(id=1, audit_days=89), "audit_days", "greater than or equal to 90"),
        (SiteRules(id=1, key_days=0), "key_days", "greater than or equal to 1"),
        (GroupRules(retention_days=0), "retention_days", "greater than or equal to 1"),
        (SiteRules(id=1, tokens_per_day=-1), "tokens_per_day", "greater than or equal to 0"),
        (SiteRules(id=1, two_factor="some"), "two_factor", "not a valid choice"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_the_reason(rules: Any, field: str, words: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        rules.full_clean(exclude={"user", "group"})
    assert words in " ".join(refusal.value.message_dict[field])


@pytest.mark.parametrize("rules", [{}, {"tokens_per_day": 5}, {"tokens_per_day": 5, "tokens_per_month": 5}])
def test_rules_that_make_sense_are_taken(rules: dict[str, int]) -> None:
    SiteRules(id=1, **rules).full_clean()


def test_the_site_has_one_row() -> None:
    SiteRules.objects.create(id=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        SiteRules.objects.create(id=2)


# -- the site's page


def test_the_list_is_the_one_form_also_before_anything_is_decided(admin: Client) -> None:
    assert admin.get("/admin/rules/siterules/", follow=True).redirect_chain == [(SITE, 302)]
    page = admin.get(SITE).content.decode()
    assert "Reading conversations of others" in page
    assert not SiteRules.objects.exists()
    assert admin.get("/admin/rules/siterules/2/change/").status_code == 302  # "doesn't exist", at the index
    for path in ("add/", "1/delete/"):
        assert admin.get(f"/admin/rules/siterules/{path}").status_code == 403
    assert admin.get("/admin/rules/siterules/1/history/").status_code == 200


def test_saving_makes_the_row_and_then_changes_it(admin: Client) -> None:
    for tokens in ("1000", "2000", ""):
        saved = admin.post(SITE, {**SITE_FORM, "tokens_per_day": tokens})
        assert saved.status_code == 302, saved.content.decode()
        assert SiteRules.objects.get().tokens_per_day == (int(tokens) if tokens else None)


def test_a_quota_of_the_day_above_the_months_is_refused_in_place(admin: Client) -> None:
    page = admin.post(SITE, {**SITE_FORM, "tokens_per_day": "2000", "tokens_per_month": "1000"})
    assert page.status_code == 200
    assert "is above that of the month, 1,000" in page.content.decode()
    assert 'value="2000"' in page.content.decode()
    assert not SiteRules.objects.exists()


def test_retention_that_deletes_says_how_much_and_wants_a_yes(admin: Client, alice: User) -> None:
    bob = User.objects.create_user("bob")
    group_of(bob, "keeps", retention_days=365)
    for days_ago in (1, 29, 31, 400):
        talked(alice, days_ago)
        talked(bob, days_ago)
    refused = admin.post(SITE, {**SITE_FORM, "retention_days": "30"})
    assert "2 conversations were last written in more than 30 days ago" in refused.content.decode()
    assert not SiteRules.objects.exists()
    assert admin.post(SITE, {**SITE_FORM, "retention_days": "30", "deletes": "on"}).status_code == 302
    assert rules_of(alice).retention_days == 30
    assert Conversation.objects.count() == 8, "a rule deletes nothing by itself"
    # Longer again, or the same: nothing more goes than before.
    for days in ("30", "60", ""):
        assert admin.post(SITE, {**SITE_FORM, "retention_days": days}).status_code == 302, days


def test_retention_that_deletes_nothing_yet_needs_no_yes(admin: Client, alice: User) -> None:
    talked(alice, 5)
    assert admin.post(SITE, {**SITE_FORM, "retention_days": "30"}).status_code == 302
    assert site_rules().retention_days == 30


def test_rules_are_for_whoever_has_the_permission(alice: User) -> None:
    client = Client()
    client.force_login(alice)
    assert client.get(SITE).status_code == 302  # to the admin's own sign-in
    alice.is_staff = True
    alice.save()
    assert client.get(SITE).status_code == 403
    assert client.get("/admin/rules/siterules/").status_code == 403
    alice.user_permissions.add(Permission.objects.get(codename="view_siterules"))
    assert "Reading conversations of others" in client.get(SITE).content.decode()
    assert client.post(SITE, {**SITE_FORM, "key_days": "3"}).status_code == 403
    assert not SiteRules.objects.exists()
    alice.user_permissions.add(Permission.objects.get(codename="change_siterules"))
    assert client.post(SITE, {**SITE_FORM, "key_days": "3"}).status_code == 302
    assert site_rules().key_days == 3


# -- rules of a group and of a person


def group_form(group: Group, **rules: str) -> dict[str, str]:
    made = GroupRules.objects.filter(group=group).first()
    row = {"rules-0-id": str(made.pk)} if made else {}
    row |= {"rules-0-group": str(group.pk), **{f"rules-0-{name}": value for name, value in rules.items()}}
    counts = {"rules-TOTAL_FORMS": "1", "rules-INITIAL_FORMS": str(int(made is not None))}
    return {"name": group.name, **counts, **row}


def test_rules_of_a_group_are_at_the_foot_of_its_page(admin: Client, alice: User) -> None:
    group = group_of(alice, "red")
    path = f"/admin/auth/group/{group.pk}/change/"
    saved = admin.post(path, group_form(group, tokens_per_day="70", pool_per_day="700", requires_two_factor="on"))
    assert saved.status_code == 302, saved.content.decode()
    rules = rules_of(alice)
    assert (rules.tokens_per_day, rules.pools[0].tokens_per_day, rules.requires_two_factor) == (70, 700, True)
    assert admin.post(path, group_form(group, tokens_per_day="")).status_code == 302
    assert rules_of(alice).tokens_per_day is None
    refused = admin.post(path, group_form(group, pool_per_day="9", pool_per_month="8"))
    assert "The pool of a day, 9 tokens, is above" in refused.content.decode()
    listed = admin.get("/admin/auth/group/").content.decode()
    assert "red" in listed
    assert '<td class="field-num_people">1</td>' in listed


def test_a_new_group_can_come_with_rules(admin: Client) -> None:
    form = {"name": "new", "rules-TOTAL_FORMS": "1", "rules-INITIAL_FORMS": "0", "rules-0-retention_days": "3"}
    assert admin.post("/admin/auth/group/add/", form).status_code == 302
    assert GroupRules.objects.get().retention_days == 3


@pytest.mark.parametrize(
    ("site", "before", "wanted", "number"),
    [
        (None, None, "30", 2),
        (None, 60, "30", 2),
        (None, 30, "60", 0),
        (None, 30, "", 0),
        (30, None, "365", 0),
        (30, 365, "", 2),  # as the site says, which is sooner
        (365, 30, "", 0),
    ],
)
def test_retention_of_a_group_that_deletes_wants_a_yes(
    admin: Client, alice: User, site: int | None, before: int | None, wanted: str, number: int
) -> None:
    for days_ago in (1, 45, 50):
        talked(alice, days_ago)
        talked(User.objects.create_user(f"stranger{days_ago}"), days_ago)
    SiteRules.objects.create(id=1, retention_days=site)
    group = group_of(alice, "red", retention_days=before)
    path = f"/admin/auth/group/{group.pk}/change/"
    answer = admin.post(path, group_form(group, retention_days=wanted))
    assert answer.status_code == (200 if number else 302)
    if number:
        assert f"{number} conversations of members of red were last" in answer.content.decode()
        assert admin.post(path, group_form(group, retention_days=wanted, deletes="on")).status_code == 302
    assert GroupRules.objects.get().retention_days == (int(wanted) if wanted else None)


def test_rules_of_a_person_are_at_the_foot_of_their_page(admin: Client, alice: User) -> None:
    page = admin.get(f"/admin/accounts/user/{alice.pk}/change/")
    assert "Rules of this person" in page.content.decode() or "rules of this person" in page.content.decode()
    assert 'name="rules-0-tokens_per_day"' in page.content.decode()


def test_what_is_due_is_counted_without_a_text(alice: User) -> None:
    talked(alice, 10)
    assert foresight.num_due(9) == 1
    assert foresight.num_due(11) == 0
    assert foresight.num_due(MAX_DAYS) == 0
    assert foresight.num_due(9, group_of(alice, "red")) == 1
    assert foresight.num_due(9, group_of(None, "blue")) == 0
