"""Nobody changes what stands in the audit log, nor deletes it before its time: the database itself refuses."""

from __future__ import annotations

import datetime
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from chatsite.audit import log
from chatsite.audit.models import MIN_DAYS, Action, AuditEntry
from tests.web.auditing import ADDRESS, World, sql

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]  # limits are counted in Valkey


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
