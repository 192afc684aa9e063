"""The audit log: each deed has its one entry, which says from what to what, and no secret is in any."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from chatsite.accounts.models import ApiKey, User
from chatsite.audit.models import Action, AuditEntry
from chatsite.ops import metrics
from chatsite.review import actions as review
from chatsite.rules.models import SiteRules
from tests.totp import code
from tests.web import account_deeds, admin_deeds, key_deeds
from tests.web.auditing import ADDRESS, PSEUDONYM, TOTP_SECRET, Deed, Told, World, sql

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]  # limits are counted in Valkey


@pytest.mark.parametrize(
    ("prepare", "expected", "ip"),
    [
        pytest.param(*deed, id=name)
        for deeds in (account_deeds.deeds, key_deeds.deeds, admin_deeds.deeds)
        for name, deed in deeds.items()
    ],
)
def test_each_deed_has_its_one_entry_and_no_secret_is_in_any(
    prepare: Deed, expected: list[Told], ip: str | None, world: World, django_capture_on_commit_callbacks: Any
) -> None:
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


def test_review_tells_the_log_and_keeps_its_own_record(world: World) -> None:
    opened = review.open_transcript(world.root, world.talked().pk, reason="Report 4711", ip=ADDRESS)
    entry = AuditEntry.objects.get(action=Action.TRANSCRIPT_OPENED)
    assert entry.detail == {"reason": "Report 4711"}
    assert (entry.actor_name, entry.subject_name, entry.target) == ("root", "alice", opened.event.conversation_key)
