"""Pages and fragments of the chat: what each shows to its owner, and that every form works with htmx and without a
script. Real Postgres and Valkey, the answers of a scripted worker."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation, Generation, Message
from inference.messages.generation import ErrorFacts, FinishReason
from tests.web.chat_worker import Attempt, StepWorker

HX = {"HX-Request": "true"}


class Page(HTMLParser):
    """Elements of a page, to ask for those that the content policy forbids or a script relies on."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def value(self, tag: str, attribute: str, **wanted: str) -> str:
        found = [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in wanted.items())]
        assert found, (tag, wanted)
        return found[0][attribute] or ""


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def ask(user: User, conversation: Conversation, text: str = "Why?") -> Generation:
    return send.send_message(user, conversation, text).generation


def answer(worker: StepWorker, *pieces: str, **finish: Any) -> Attempt:
    attempt = worker.claim().start()
    attempt.write(*pieces)
    attempt.finish(**finish)
    assert record.record(attempt.id)
    return attempt


def test_empty_state_offers_a_form_that_starts_a_conversation(owner: Client, worker: StepWorker) -> None:
    worker.announce()
    page = owner.get("/")
    assert page.status_code == 200
    assert b"Scripted answers" in page.content
    key = Page(page.content).value("input", "value", name="key")
    sent = owner.post("/chat/", {"text": "Hello", "key": key})
    conversation = Conversation.objects.get()
    assert (sent.status_code, sent["Location"]) == (302, f"/chat/{conversation.pk}/")
    shown = owner.get(sent["Location"]).content
    assert b"Hello" in shown
    assert b'http-equiv="refresh"' in shown  # without a script the page looks again by itself


def test_same_first_press_twice_starts_one_conversation(owner: Client, worker: StepWorker) -> None:
    worker.announce()
    press = {"text": "Hello", "key": str(uuid.uuid4())}
    assert owner.post("/chat/", press)["Location"] == owner.post("/chat/", press)["Location"]
    assert Conversation.objects.count() == 1
    assert Generation.objects.count() == 1


def test_first_send_with_htmx_brings_the_conversation_and_its_address(owner: Client) -> None:
    sent = owner.post("/chat/", {"text": "Hello", "key": str(uuid.uuid4()), "thinking": "off"}, headers=HX)
    conversation = Conversation.objects.get()
    assert sent.status_code == 200
    assert sent["HX-Push-Url"] == f"/chat/{conversation.pk}/"
    assert sent["HX-Retarget"] == "#chat"
    assert b"<html" not in sent.content
    assert b'id="rail"' in sent.content
    assert conversation.thinking is False


@pytest.mark.parametrize("headers", [{}, HX], ids=["plain", "htmx"])
@pytest.mark.parametrize(("text", "status"), [("", 400), ("x" * 51, 413)], ids=["empty", "long"])
def test_refused_first_send_says_why_and_leaves_nothing(
    owner: Client, site: Callable[..., None], headers: dict[str, str], text: str, status: int
) -> None:
    site(max_message_chars=50)
    refused = owner.post("/chat/", {"text": text, "key": str(uuid.uuid4())}, headers=headers)
    assert refused.status_code == status
    assert b'class="err"' in refused.content
    assert text.encode() in refused.content or headers  # the typed text stays in the box
    assert refused.get("HX-Retarget", "#refusal") == "#refusal"
    assert not Conversation.objects.exists()


def test_send_shows_both_turns_and_a_fresh_key(owner: Client, conversation: Conversation) -> None:
    old = str(uuid.uuid4())
    sent = owner.post(f"/chat/{conversation.pk}/send/", {"text": "<b>Hi</b>", "key": old}, headers=HX)
    assert sent.status_code == 200
    page = Page(sent.content)
    assert page.value("input", "value", id="key") != old
    assert page.value("article", "data-generation", **{"aria-busy": "true"}) == str(Generation.objects.get().pk)
    assert b"&lt;b&gt;Hi&lt;/b&gt;" in sent.content
    again = owner.post(f"/chat/{conversation.pk}/send/", {"text": "<b>Hi</b>", "key": old}, headers=HX)
    assert again["HX-Retarget"] == "#log"
    assert Message.objects.count() == 2


def test_send_without_a_script_redirects_back(owner: Client, conversation: Conversation) -> None:
    sent = owner.post(f"/chat/{conversation.pk}/send/", {"text": "Hi"})
    assert (sent.status_code, sent["Location"]) == (302, f"/chat/{conversation.pk}/")


@pytest.mark.parametrize("headers", [{}, HX], ids=["plain", "htmx"])
def test_second_send_while_an_answer_is_written_waits(
    owner: Client, alice: User, conversation: Conversation, headers: dict[str, str]
) -> None:
    ask(alice, conversation)
    waits = owner.post(f"/chat/{conversation.pk}/send/", {"text": "typed words"}, headers=headers)
    assert waits.status_code == (200 if headers else 302)
    assert conversation.queued.get().content == "typed words"
    assert b"typed words" in owner.get(f"/chat/{conversation.pk}/").content


def test_bad_key_is_refused(owner: Client, conversation: Conversation) -> None:
    refused = owner.post(f"/chat/{conversation.pk}/send/", {"text": "Hi", "key": "no uuid"}, headers=HX)
    assert refused.status_code == 400
    assert not Message.objects.exists()


def test_live_answer_is_shown_so_far_with_its_cursor(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    ask(alice, conversation)
    attempt = worker.claim().start()
    attempt.think("Let me see.\nFirst")
    attempt.write("# Title\n", "Some **bold** words\n\n", "and <x>mo")
    page = owner.get(f"/chat/{conversation.pk}/").content
    mark = worker.log.read(attempt.id).mark
    assert Page(page).value("article", "data-cursor", **{"data-generation": str(attempt.id)}) == f"{mark}:5"
    assert b"<h3>Title</h3>\n<p>Some <strong>bold</strong> words</p>\n" in page
    assert b'<div class="tail"><p>and &lt;x&gt;m<b>o</b></p>\n</div>' in page
    assert b'<span class="line">First</span>' in page
    assert b'data-phase="writing"' in page


def test_waiting_answer_tells_its_place(owner: Client, alice: User, conversation: Conversation) -> None:
    ask(alice, send.start_conversation(alice))
    ask(alice, conversation)
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    assert re.search(r'data-phase="waiting".*?Place \d of 2', page, re.DOTALL)


def test_live_answer_without_redis_still_has_a_page(
    owner: Client, alice: User, conversation: Conversation, redis: Any
) -> None:
    ask(alice, conversation)
    redis.flushall()  # Redis came back empty: the sweeper has not entered it again yet
    page = owner.get(f"/chat/{conversation.pk}/")
    assert page.status_code == 200
    assert b'data-cursor=""' in page.content
    assert b"Waiting" in page.content


def test_settled_answer_has_its_numbers_and_actions(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    ask(alice, conversation)
    answer(worker, "Because.\n\n", "- a\n- b\n")
    page = owner.get(f"/chat/{conversation.pk}/").content
    assert b"<p>Because.</p>\n<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n" in page
    assert "7 tokens · 12 tok/s · step-1".encode() in page
    assert b'<template class="source">Because.\n\n- a\n- b\n</template>' in page
    assert b"data-generation" not in page


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ({"reason": FinishReason.CANCELLED}, "Stopped here."),
        ({"reason": FinishReason.LENGTH}, "most tokens"),
        ({"reason": FinishReason.LENGTH, "cut": "max_tokens"}, "most tokens"),
        ({"reason": FinishReason.LENGTH, "cut": "context"}, "filled the model&#x27;s context"),
        ({"reason": FinishReason.LENGTH, "cut": "time"}, "longest time"),
        ({"reason": FinishReason.LENGTH, "cut": "loop"}, "only repeated itself"),
        (
            {"reason": FinishReason.ERROR, "error": ErrorFacts(code="x", message="Out <of> memory.", retryable=True)},
            "Out &lt;of&gt; memory. What was written is kept.",
        ),
    ],
    ids=["stopped", "length", "tokens", "context", "time", "loop", "failed"],
)
def test_unusual_ends_are_said(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker, finish: Any, expected: str
) -> None:
    ask(alice, conversation)
    answer(worker, "Some text", **finish)
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    assert expected in page
    assert "<p>Some text</p>" in page
    assert ">Retry</button>" in page


@pytest.mark.parametrize("headers", [{}, HX], ids=["plain", "htmx"])
def test_stop_is_kept_in_the_database(
    owner: Client, alice: User, conversation: Conversation, headers: dict[str, str]
) -> None:
    generation = ask(alice, conversation)
    stopped = owner.post(f"/chat/generations/{generation.pk}/stop/", headers=headers)
    assert stopped.status_code == (204 if headers else 302)
    generation.refresh_from_db()
    assert generation.stop_requested


def test_retry_makes_a_version_and_select_goes_back(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    ask(alice, conversation)
    first = answer(worker, "first answer")
    first_message = Generation.objects.get(pk=first.id).message
    assert first_message
    again = owner.post(f"/chat/messages/{first_message.pk}/retry/", headers=HX)
    assert again["HX-Retarget"] == "#log"
    assert b"first answer" not in again.content
    assert b"2 / 2" not in again.content  # shown once it is settled
    answer(worker, "second answer")
    page = owner.get(f"/chat/{conversation.pk}/").content
    assert b"second answer" in page
    assert b"<span>2 / 2</span>" in page
    back = owner.post(f"/chat/messages/{first_message.pk}/select/")
    assert back.status_code == 302
    assert b"first answer" in owner.get(f"/chat/{conversation.pk}/").content


def test_retry_of_a_running_answer_is_refused(owner: Client, alice: User, conversation: Conversation) -> None:
    running = ask(alice, conversation)
    assert owner.post(f"/chat/messages/{running.message_id}/retry/", headers=HX).status_code == 409


def test_rename_shows_the_new_title_escaped(owner: Client, conversation: Conversation) -> None:
    where = {**HX, "HX-Current-URL": f"http://testserver/chat/{conversation.pk}/"}
    renamed = owner.post(f"/chat/{conversation.pk}/rename/", {"title": '"><script>x'}, headers=where)
    assert renamed.status_code == 200
    assert b"&quot;&gt;&lt;script&gt;x" in renamed.content
    assert b'<h1 id="heading"' in renamed.content
    assert owner.post(f"/chat/{conversation.pk}/rename/", {"title": "plain"}).status_code == 302


def test_delete_asks_first_and_then_deletes(owner: Client, conversation: Conversation) -> None:
    url = f"/chat/{conversation.pk}/delete/"
    assert b"for good" in owner.get(url).content
    assert Conversation.objects.exists()
    assert owner.post(url)["Location"] == "/"
    assert not Conversation.objects.exists()


def test_delete_of_the_open_conversation_leads_away(owner: Client, conversation: Conversation) -> None:
    where = {**HX, "HX-Current-URL": f"http://testserver/chat/{conversation.pk}/"}
    assert owner.post(f"/chat/{conversation.pk}/delete/", headers=where)["HX-Redirect"] == "/"


def test_sidebar_pages_through_all_conversations_once(owner: Client, alice: User) -> None:
    for number in range(120):
        Conversation.objects.create(owner=alice, title=f"title {number}.")
    seen: list[str] = []
    url = "/chat/sidebar/"
    while url:
        content = owner.get(url, headers=HX).content.decode()
        seen += re.findall(r"class=\"t\"[^>]*>(title \d+\.)<", content)
        found = re.search(r'hx-get="(/chat/sidebar/\?after=[^"]+)"', content)
        url = found[1].replace("&amp;", "&") if found else ""
    assert seen == [f"title {number}." for number in reversed(range(120))]


def test_sidebar_shows_which_is_still_written(owner: Client, alice: User, conversation: Conversation) -> None:
    ask(alice, conversation)
    assert b"still writing" in owner.get("/chat/sidebar/", headers=HX).content
    assert owner.get("/chat/sidebar/?after=nonsense", headers=HX).status_code == 200
    assert owner.get("/chat/sidebar/").status_code == 302


def test_long_conversation_shows_its_end_and_more_on_request(owner: Client, alice: User) -> None:
    conversation = Conversation.objects.create(owner=alice)
    parent = None
    for number in range(101):
        parent = Message.objects.create(
            conversation=conversation, parent=parent, role="user", content=f"turn {number}."
        )
    conversation.leaf = parent
    conversation.save()
    url = f"/chat/{conversation.pk}/"
    texts = re.findall(r"turn \d+\.", owner.get(url).content.decode())
    assert texts == [f"turn {number}." for number in range(71, 101)]
    found = re.search(r'hx-get="([^"]+earlier[^"]+)"', owner.get(url).content.decode())
    assert found
    earlier = owner.get(found[1], headers=HX).content.decode()
    assert re.findall(r"turn \d+\.", earlier) == [f"turn {number}." for number in range(41, 71)]
    assert len(re.findall(r"turn \d+\.", owner.get(url + "?all=1").content.decode())) == 101


def test_fragment_and_page_come_from_one_template(owner: Client, conversation: Conversation) -> None:
    url = f"/chat/{conversation.pk}/"
    page = owner.get(url)
    fragment = owner.get(url, headers=HX)
    assert b"<html" in page.content
    assert b"<html" not in fragment.content
    assert b'id="chat"' in fragment.content
    assert b"<html" in owner.get(url, headers={**HX, "HX-History-Restore-Request": "true"}).content
    assert "HX-Request" in page["Vary"]
    assert "no-store" in page["Cache-Control"]
