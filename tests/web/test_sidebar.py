"""The list of conversations: its order and groups, its pages, and every verb, with htmx and without a script."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable

import pytest
from django.http import Http404
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.actions import organize, send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation, Tag
from chatsite.chat.queries import access, sidebar
from inference.messages.generation import FinishReason
from tests.web.chat_worker import StepWorker
from tests.web.test_pages import HX


def make(user: User, title: str, days_ago: float = 0, **fields: object) -> Conversation:
    made = Conversation.objects.create(owner=user, title=title, **fields)
    made.updated_at = timezone.now() - datetime.timedelta(days=days_ago)
    made.save(update_fields=["updated_at"])
    return made


def titles(page: sidebar.Page) -> list[str]:
    return [row.conversation.title for row in page.rows]


def test_pinned_come_first_then_days_then_months(alice: User) -> None:
    for title, days in [("now", 0), ("yesterday", 1), ("six days", 6), ("old", 400), ("pinned", 40), ("pinned too", 9)]:
        make(alice, title, days)
    for title in ("pinned", "pinned too"):
        organize.pin(alice, Conversation.objects.get(title=title), is_on=True)
    page = sidebar.page(alice)
    assert titles(page) == ["pinned too", "pinned", "now", "yesterday", "six days", "old"]
    old = timezone.localtime(Conversation.objects.get(title="old").updated_at)
    groups = [row.group for row in page.rows]
    assert groups == ["Pinned", "", "Today", "Yesterday", "Last week", f"{old:%B %Y}"]


def test_pages_show_each_conversation_once_whatever_is_pinned(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidebar, "PAGE_ROWS", 3)
    made = [make(alice, str(n), n / 100) for n in range(10)]
    made[2].updated_at = made[3].updated_at
    made[2].save()
    for n in (0, 5, 9):
        organize.pin(alice, made[n], is_on=True)
    shown: list[str] = []
    after, num_pages = "", 0
    while num_pages == 0 or after:
        page = sidebar.page(alice, after)
        shown += titles(page)
        after, num_pages = page.next, num_pages + 1
    assert num_pages == 3
    assert shown[:3] == ["9", "5", "0"]
    assert sorted(shown) == [str(n) for n in range(10)]
    assert len(titles(sidebar.page(alice, count=8))) == 10
    assert titles(sidebar.page(alice, "nonsense~")) == titles(sidebar.page(alice))


def test_archive_takes_out_of_the_list_and_lets_go_of_the_pin(alice: User) -> None:
    one, _ = make(alice, "one"), make(alice, "two")
    organize.pin(alice, one, is_on=True)
    organize.archive(alice, one, is_on=True)
    assert titles(sidebar.page(alice)) == ["two"]
    assert titles(sidebar.page(alice, choice=sidebar.Choice(is_archive=True))) == ["one"]
    organize.archive(alice, one, is_on=False)
    assert titles(sidebar.page(alice)) == ["one", "two"] or titles(sidebar.page(alice)) == ["two", "one"]
    one.refresh_from_db()
    assert (one.pinned_at, one.archived_at) == (None, None)
    organize.archive(alice, one, is_on=True)
    organize.pin(alice, one, is_on=True)  # a pinned one is in sight
    one.refresh_from_db()
    assert one.archived_at is None


def test_tags_are_made_by_their_first_use_and_go_with_their_last(alice: User, bob: User) -> None:
    one, two = make(alice, "one"), make(alice, "two")
    work = organize.tag(alice, one, "  Work \n stuff ")
    assert work.name == "Work stuff"
    assert organize.tag(alice, two, "work STUFF") == work
    assert organize.tag(bob, make(bob, "his"), "Work stuff") != work
    choice = sidebar.Choice.of({"tag": str(work.pk)})
    assert sorted(titles(sidebar.page(alice, choice=choice))) == ["one", "two"]
    assert titles(sidebar.page(bob, choice=choice)) == []
    organize.untag(alice, one, "Work stuff")
    assert titles(sidebar.page(alice, choice=choice)) == ["two"]
    organize.delete(alice, two)
    assert not Tag.objects.filter(owner=alice).exists()
    assert Tag.objects.filter(owner=bob).exists()


def test_tags_and_pins_have_limits_that_lose_nothing(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = make(alice, "one"), make(alice, "two")
    for name in ("", " \n", "x" * 41, "\x00"):
        with pytest.raises(errors.NotATag):
            organize.tag(alice, one, name)
    monkeypatch.setattr(organize, "MAX_TAGS", 1)
    organize.tag(alice, one, "a")
    with pytest.raises(errors.TooManyTags):
        organize.tag(alice, one, "b")
    organize.tag(alice, one, "a")
    monkeypatch.setattr(organize, "MAX_TAGS", 9)
    monkeypatch.setattr(organize, "MAX_TAGS_OF_ONE", 1)
    with pytest.raises(errors.TooManyTags):
        organize.tag(alice, one, "b")
    assert [tag.name for tag in one.tags.all()] == ["a"]
    monkeypatch.setattr(organize, "MAX_PINNED", 1)
    organize.pin(alice, one, is_on=True)
    organize.pin(alice, one, is_on=True)
    with pytest.raises(errors.TooManyPinned):
        organize.pin(alice, two, is_on=True)


VERBS: dict[str, Callable[[User, Conversation], object]] = {
    "rename": lambda user, target: organize.rename(user, target, "mine"),
    "pin": lambda user, target: organize.pin(user, target, is_on=True),
    "archive": lambda user, target: organize.archive(user, target, is_on=True),
    "mark": lambda user, target: organize.mark(user, target, is_unread=True),
    "tag": lambda user, target: organize.tag(user, target, "mine"),
    "untag": lambda user, target: organize.untag(user, target, "mine"),
    "delete": organize.delete,
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_reaches_what_is_somebody_elses(verb: str, alice: User, bob: User, sam: User) -> None:
    hers = make(alice, "hers")
    before = Conversation.objects.filter(pk=hers.pk).values().get()
    for stranger in (bob, sam):
        with pytest.raises(Http404):
            VERBS[verb](stranger, hers)
    assert Conversation.objects.filter(pk=hers.pk).values().get() == before
    assert not Tag.objects.exists()


def test_bulk_verbs_take_only_ones_own(alice: User, bob: User) -> None:
    mine, his = [make(alice, "a"), make(alice, "b")], make(bob, "his")
    pks = [*(one.pk for one in mine), his.pk, uuid.uuid4()]
    assert organize.archive_all(alice, pks) == 2
    assert organize.delete_all(alice, pks) == 2
    assert list(Conversation.objects.all()) == [his]
    his.refresh_from_db()
    assert his.archived_at is None


def test_every_verb_is_a_form_that_works_without_a_script(owner: Client, alice: User) -> None:
    one = make(alice, "<one>")
    url = f"/chat/{one.pk}"
    menu = owner.get(f"{url}/menu/").content.decode()
    assert "<html" in menu and "&lt;one&gt;" in menu
    for verb, name in [("pin", ""), ("tag", "t & t"), ("unread", "")]:
        done = owner.post(f"{url}/arrange/", {"verb": verb, "name": name})
        assert (done.status_code, done["Location"]) == (302, f"{url}/")
    one.refresh_from_db()
    assert one.pinned_at and one.is_unread
    tag = one.tags.get()
    page = owner.get("/").content.decode()
    assert "Pinned" in page and 'class="unread"' in page and f"/?tag={tag.pk}" in page and "t &amp; t" in page
    menu = owner.get(f"{url}/menu/", headers=HX).content.decode()
    assert "<html" not in menu and 'value="unpin"' in menu and 'value="t &amp; t"' in menu and "Mark as read" in menu
    assert "&lt;one&gt;" in owner.get(f"/?tag={tag.pk}").content.decode()
    owner.post(f"{url}/arrange/", {"verb": "archive"})
    assert "&lt;one&gt;" not in owner.get("/").content.decode()
    assert "&lt;one&gt;" in owner.get("/?archived=1").content.decode()
    assert owner.post(f"{url}/arrange/", {"verb": "explode"}).status_code == 400
    refused = owner.post(f"{url}/arrange/", {"verb": "tag", "name": "x" * 99})
    assert refused.status_code == 400 and "between 1 and 40" in refused.content.decode()
    done = owner.post(f"{url}/arrange/", {"verb": "unarchive"}, headers=HX)
    assert (done.status_code, done["HX-Trigger"]) == (204, "rows:changed")


def test_bulk_asks_with_the_count_before_it_does_anything(owner: Client, alice: User, bob: User) -> None:
    mine, his = [make(alice, f"<{n}>") for n in range(3)], make(bob, "his")
    chosen = [str(one.pk) for one in mine[:2]] + [str(his.pk), "nonsense"]
    for headers in ({}, HX):
        asked = owner.post("/chat/bulk/", {"verb": "delete", "chosen": chosen}, headers=headers).content.decode()
        assert "Delete 2 conversations for good?" in asked
        assert "his" not in asked.split("<main")[-1] and str(his.pk) not in asked
    assert Conversation.objects.count() == 4
    done = owner.post("/chat/bulk/", {"verb": "archive", "chosen": chosen, "confirmed": "1"}, headers=HX)
    assert (done.content, done["HX-Trigger"]) == (b"", "rows:changed")
    open_page = {**HX, "HX-Current-URL": f"http://testserver/chat/{mine[0].pk}/?at=1"}
    done = owner.post("/chat/bulk/", {"verb": "delete", "chosen": chosen, "confirmed": "1"}, headers=open_page)
    assert done["HX-Redirect"] == "/"
    assert sorted(one.title for one in Conversation.objects.all()) == ["<2>", "his"]
    done = owner.post("/chat/bulk/", {"verb": "delete", "chosen": str(mine[2].pk), "confirmed": "1"}, follow=True)
    assert "1 conversation deleted." in done.content.decode() or done.redirect_chain == [("/", 302)]
    assert owner.post("/chat/bulk/", {"verb": "delete"}).status_code == 400
    assert owner.post("/chat/bulk/", {"verb": "explode", "chosen": str(his.pk)}).status_code == 400


def test_list_as_the_page_has_it_is_not_sent_again(owner: Client, alice: User) -> None:
    one = make(alice, "one")
    digest = sidebar.page(alice).digest
    assert owner.get("/chat/sidebar/", {"digest": digest, "count": "1"}, headers=HX).status_code == 204
    for change in (
        lambda: organize.rename(alice, one, "two"),
        lambda: organize.mark(alice, one, is_unread=True),
        lambda: organize.pin(alice, one, is_on=True),
        lambda: organize.tag(alice, one, "t"),
    ):
        change()
        page = owner.get("/chat/sidebar/", {"digest": digest}, headers=HX)
        fresh = sidebar.page(alice).digest
        assert page.status_code == 200 and fresh != digest and f'data-digest="{fresh}"' in page.content.decode()
        digest = fresh
    assert owner.get("/chat/sidebar/?count=99999999&tag=abc&archived", headers=HX).status_code == 200
    assert owner.get("/chat/sidebar/?tag=999999999999999", headers=HX).status_code == 200
    assert owner.get("/chat/sidebar/?tag=3")["Location"] == "/?tag=3"


def test_answer_that_ends_is_unread_until_it_is_looked_at(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    send.send_message(alice, conversation, "Why?")
    (row,) = sidebar.page(alice).rows
    assert (row.is_writing, row.conversation.is_unread) == (True, False)
    attempt = worker.claim().start()
    attempt.write("Because.")
    attempt.finish()
    record.record(attempt.id)
    (row,) = sidebar.page(alice).rows
    assert (row.is_writing, row.conversation.is_unread) == (False, True)
    owner.get(f"/chat/{conversation.pk}/")
    assert not access.conversation_of(alice, conversation.pk).is_unread


def test_answer_that_ends_without_a_log_is_unread_too(alice: User, conversation: Conversation) -> None:
    sent = send.send_message(alice, conversation, "Why?")
    assert record.end_without_log(sent.generation.pk, FinishReason.ERROR)
    assert access.conversation_of(alice, conversation.pk).is_unread
    assert Generation.objects.get().status == Generation.Status.FAILED
