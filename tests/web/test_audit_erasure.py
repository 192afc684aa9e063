"""Whoever is erased is in no entry of the audit log any more, but for one pseudonym that stays."""

from __future__ import annotations

import pytest
from django.db import DatabaseError

from chatsite.accounts.models import User
from chatsite.audit import log
from chatsite.audit.models import Action, AuditEntry
from chatsite.audit.origin import asked_by
from tests.web.auditing import ADDRESS, PASSWORD, PSEUDONYM, World, admin_user_form, sql

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]  # limits are counted in Valkey


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
