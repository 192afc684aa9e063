"""Review: who may open whose conversation, and that nothing is shown before the record of it is committed.

Owner, stranger, staff without the permission and reviewer have fixed names. `SECRET` stands in every text of the
conversation: where it is not to be seen, it must be nowhere in the response.
"""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Permission
from django.db import DatabaseError, connection, connections, transaction
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.review import actions
from chatsite.review.models import AccessEvent, AccessIsFinal

SECRET = "xyzzy-plugh"
REASON = "Report 4711 of its owner"

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    """The owner."""
    return User.objects.create_user("alice", email="alice@example.org")


@pytest.fixture
def bob() -> User:
    """A stranger."""
    return User.objects.create_user("bob")


@pytest.fixture
def sam() -> User:
    """Staff without the permission."""
    return User.objects.create_user("sam", is_staff=True)


@pytest.fixture
def rita() -> User:
    """Staff with it."""
    rita = User.objects.create_user("rita", is_staff=True)
    rita.user_permissions.add(Permission.objects.get(codename="view_transcript"))
    return rita


@pytest.fixture
def paul() -> User:
    """Has the permission, but is no staff."""
    paul = User.objects.create_user("paul")
    paul.user_permissions.add(Permission.objects.get(codename="view_transcript"))
    return paul


@pytest.fixture
def conversation(alice: User) -> Conversation:
    conversation = Conversation.objects.create(
        owner=alice, title=f"About {SECRET}", system_prompt=f"Say {SECRET}.", model="m"
    )
    question = Message.objects.create(conversation=conversation, role="user", content=f"What is {SECRET} <b>?</b>")
    failed = Message.objects.create(conversation=conversation, role="assistant", parent=question)
    Generation.objects.create(
        user=alice, message=failed, status="failed", error_message="The worker left.", ended_at=timezone.now()
    )
    answer = Message.objects.create(
        conversation=conversation,
        role="assistant",
        parent=question,
        content=f"It is **{SECRET}** <script>alert(1)</script>",
        reasoning=f"Hm, *{SECRET}*",
    )
    Generation.objects.create(user=alice, message=answer, status="done", ended_at=timezone.now())
    conversation.leaf = answer
    conversation.save()
    return conversation


def signed_in(user: User | None) -> Client:
    client = Client()
    if user is not None:
        client.force_login(user)
    return client


def page_of(conversation: Conversation) -> str:
    return f"/review/{conversation.pk}/"


@pytest.mark.parametrize("name", [None, "alice", "bob", "sam"])
def test_for_whoever_may_not_review_nothing_is_there(
    name: str | None, conversation: Conversation, bob: User, sam: User
) -> None:
    client = signed_in(User.objects.get(username=name) if name else None)
    for path in ("/review/", "/review/?owner=alice", page_of(conversation), f"/review/{uuid4()}/"):
        assert client.get(path).status_code == 404, path
    assert client.post(page_of(conversation), {"reason": REASON}).status_code == 404
    assert not AccessEvent.objects.exists()


def test_the_permission_is_enough_without_being_staff(paul: User, conversation: Conversation) -> None:
    opened = signed_in(paul).post(page_of(conversation), {"reason": REASON})
    assert SECRET in opened.content.decode()
    assert AccessEvent.objects.get().actor == paul


def test_an_inactive_reviewer_is_nobody(rita: User, conversation: Conversation) -> None:
    rita.is_active = False
    assert not actions.may_review(rita)


def test_the_way_of_a_reviewer(rita: User, alice: User, conversation: Conversation) -> None:
    client = signed_in(rita)
    found = client.get("/review/", {"owner": "ALICE"})
    assert found.status_code == 200
    assert page_of(conversation) in found.content.decode()
    assert SECRET not in found.content.decode()

    asked = client.get(page_of(conversation))
    assert asked.status_code == 200
    assert SECRET not in asked.content.decode()
    assert not AccessEvent.objects.exists()

    opened = client.post(page_of(conversation), {"reason": f"  {REASON} "}, REMOTE_ADDR="192.0.2.7")
    assert opened.status_code == 200
    assert "no-store" in opened["Cache-Control"]
    text = opened.content.decode()
    assert f"<strong>{SECRET}</strong>" in text
    assert f"Hm, *{SECRET}*" in text
    assert f"Say {SECRET}." in text
    assert "The worker left." in text
    assert "on another branch" in text
    assert "&lt;b&gt;?&lt;/b&gt;" in text
    assert "<script>alert" not in text

    event = AccessEvent.objects.get()
    assert (event.actor, event.actor_name, event.subject, event.conversation) == (rita, "rita", alice, conversation)
    assert (event.conversation_key, event.reason, event.ip) == (str(conversation.pk), REASON, "192.0.2.7")


@pytest.mark.parametrize("reason", [None, "", "    ", "why", "\x00" * 9, "x" * 501])
def test_without_a_reason_nothing_is_recorded_and_nothing_shown(
    rita: User, conversation: Conversation, reason: str | None
) -> None:
    answer = signed_in(rita).post(page_of(conversation), {} if reason is None else {"reason": reason})
    assert answer.status_code == 400
    assert SECRET not in answer.content.decode()
    assert not AccessEvent.objects.exists()


def test_every_opening_is_a_record_of_its_own(rita: User, conversation: Conversation) -> None:
    client = signed_in(rita)
    for _ in range(2):
        client.post(page_of(conversation), {"reason": REASON})
    assert AccessEvent.objects.count() == 2


def test_other_methods_are_refused(rita: User, conversation: Conversation) -> None:
    client = signed_in(rita)
    assert client.post("/review/").status_code == 405
    for method in ("put", "delete", "patch"):
        assert getattr(client, method)(page_of(conversation)).status_code == 405


def test_opening_needs_the_form_of_this_site(rita: User, conversation: Conversation) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(rita)
    assert client.post(page_of(conversation), {"reason": REASON}).status_code == 403
    assert not AccessEvent.objects.exists()


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        ({"owner": "alice"}, True),
        ({"owner": "alice@EXAMPLE.org"}, True),
        ({"owner": "alice", "title": SECRET[:5]}, True),
        ({"owner": "alice", "title": "something else"}, True),
        ({"owner": "alice", "model": "m"}, True),
        ({"owner": "alice", "model": "n"}, False),
        ({"owner": "alice", "since": "2020-01-01", "until": "2999-12-31"}, True),
        ({"owner": "alice", "since": "2999-01-01"}, False),
        ({"owner": "alice", "until": "2020-01-01"}, False),
        ({"owner": "alice", "since": "2999-01-02", "until": "2999-01-01"}, False),
        ({"owner": "", "since": "2020-01-01"}, False),
        ({"owner": "alice", "feedback": "reported"}, False),
        ({"owner": "ali"}, False),
        ({"owner": "bob"}, False),
        ({"owner": "bob", "title": SECRET}, False),
        ({"owner": "", "title": SECRET}, False),
        ({"owner": "al\x00ice"}, False),
        ({"owner": "alice", "page": "999"}, True),
    ],
)
def test_search_goes_by_owner_and_by_nothing_that_was_written(
    rita: User, bob: User, conversation: Conversation, query: dict[str, str], is_found: bool
) -> None:
    page = signed_in(rita).get("/review/", query)
    assert page.status_code == 200
    assert (page_of(conversation) in page.content.decode()) is is_found


def test_search_by_the_conversations_id(rita: User, conversation: Conversation) -> None:
    assert page_of(conversation) in signed_in(rita).get("/review/", {"owner": str(conversation.pk)}).content.decode()


def test_the_owner_sees_who_opened_what_and_nobody_else_does(
    rita: User, alice: User, bob: User, conversation: Conversation
) -> None:
    signed_in(rita).post(page_of(conversation), {"reason": REASON})
    mine = signed_in(alice).get("/review/mine/").content.decode()
    assert "rita" in mine
    assert REASON in mine
    assert f"About {SECRET}" in mine
    for other in (bob, rita):
        assert REASON not in signed_in(other).get("/review/mine/").content.decode()
    assert signed_in(None).get("/review/mine/").status_code == 302


def test_records_outlive_conversation_and_people(rita: User, alice: User, conversation: Conversation) -> None:
    signed_in(rita).post(page_of(conversation), {"reason": REASON})
    key = str(conversation.pk)
    conversation.delete()
    assert "a deleted conversation" in signed_in(alice).get("/review/mine/").content.decode()
    rita.delete()
    alice.delete()
    event = AccessEvent.objects.get()
    assert (event.actor, event.subject, event.conversation) == (None, None, None)
    assert (event.actor_name, event.conversation_key, event.reason) == ("rita", key, REASON)


def test_a_record_is_final_for_the_code_and_for_the_database(
    rita: User, alice: User, bob: User, conversation: Conversation
) -> None:
    signed_in(rita).post(page_of(conversation), {"reason": REASON})
    event = AccessEvent.objects.get()
    event.reason = "another"
    for attempt in (
        event.save,
        event.delete,
        AccessEvent.objects.all().delete,
        lambda: AccessEvent.objects.update(reason="x"),
    ):
        with pytest.raises(AccessIsFinal):
            attempt()
    for column, value in (
        ("reason", "another"),
        ("actor_name", "bob"),
        ("actor_id", bob.pk),
        ("subject_id", bob.pk),
        ("conversation_key", str(uuid4())),
        ("at", timezone.now()),
        ("ip", "192.0.2.9"),
    ):
        with pytest.raises(DatabaseError, match="never changed"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE review_accessevent SET {column} = %s", [value])
    with pytest.raises(DatabaseError, match="never changed"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM review_accessevent")
    assert AccessEvent.objects.get().reason == REASON


# -- with real commits


@pytest.fixture
def failing_insert(transactional_db: None):
    """Postgres itself refuses every access record."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE review_accessevent ADD CONSTRAINT full_disk CHECK (reason IS NULL) NOT VALID")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE review_accessevent DROP CONSTRAINT full_disk")


def test_when_the_record_cannot_be_written_nothing_is_shown(
    failing_insert: None, rita: User, conversation: Conversation
) -> None:
    answer = signed_in(rita).post(page_of(conversation), {"reason": REASON})
    assert answer.status_code == 503
    assert SECRET not in answer.content.decode()
    assert not AccessEvent.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_record_is_committed_before_any_text_is_read(rita: User, conversation: Conversation) -> None:
    """Another connection sees the record at the first query that asks for text."""
    seen: list[bool] = []

    def watch(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        if '"content"' in sql or '"title"' in sql:
            seen.append(_is_committed(conversation.pk))
        return execute(sql, params, many, context)

    client = signed_in(rita)
    with connection.execute_wrapper(watch):
        answer = client.post(page_of(conversation), {"reason": REASON})
    assert SECRET in answer.content.decode()
    assert seen
    assert all(seen)


def _is_committed(conversation_id: UUID) -> bool:
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM review_accessevent WHERE conversation_key = %s", [str(conversation_id)])
            return cursor.fetchone() is not None
    finally:
        other.close()
