"""The tree of a conversation: its versions, its forks, and what of it is shown to whom."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions import retry, send, tree
from chatsite.chat.generation import record
from chatsite.chat.models import TITLE_CHARS, Attachment, Conversation, Generation, Message, Tag
from chatsite.chat.queries import access
from chatsite.chat.rendering import message
from inference.messages.generation import FinishReason
from tests.web.chat_worker import MODEL, StepWorker
from tests.web.test_actions import answer
from tests.web.tree import asked, grown, path_of  # noqa: F401  (fixtures)

HX = {"HX-Request": "true"}


# -- versions ----------------------------------------------------------------------------------------------------------


def test_a_version_leads_to_where_it_was_last_gone_on_with(
    alice: User, conversation: Conversation, worker: StepWorker, asked: Callable[..., actions_answer.Sent]
) -> None:
    first = asked("first")
    retry.retry(alice, first.answer)
    answer(worker, "another answer")
    tree.select(alice, first.answer)
    asked("after the first answer")
    edited = send.edit(alice, first.message, "first, differently")
    answer(worker, "an answer to that")
    tree.select(alice, first.message)
    assert path_of(conversation)[-2:] == ["after the first answer", "answer to after the first answer"]
    tree.select(alice, edited.message)
    assert path_of(conversation) == ["first, differently", "an answer to that"]


def test_every_level_of_a_wide_and_deep_tree_has_its_arrows(
    owner: Client, alice: User, conversation: Conversation
) -> None:
    (root, *_rest) = grown(conversation, 30)
    for _version in range(19):
        grown(conversation, 2, parent=root)
    top = [Message(conversation=conversation, role=Message.Role.USER, content=f"root {n}") for n in range(17)]
    Message.objects.bulk_create(top)
    chain = access.path_of(conversation)
    turns = message.shown_path(conversation, chain)
    assert [turn.siblings and turn.siblings.count for turn in turns] == [18, 20, None]
    page = owner.get(f"/chat/{conversation.pk}/").content
    assert b"<span>20 / 20</span>" in page
    assert b"<span>1 / 18</span>" in page
    back = turns[1].siblings
    assert back
    assert back.before
    assert b"<span>19 / 20</span>" in owner.post(f"/chat/messages/{back.before}/select/", headers=HX).content
    owner.post(f"/chat/messages/{_rest[0].pk}/select/")
    assert len(path_of(conversation)) == 30


def test_a_version_far_above_is_among_what_is_shown(owner: Client, conversation: Conversation) -> None:
    rows = grown(conversation, 40)
    shown = owner.post(f"/chat/messages/{rows[0].pk}/select/", headers=HX).content.decode()
    assert f'id="m-{rows[0].pk}"' in shown
    plain = owner.post(f"/chat/messages/{rows[0].pk}/select/")
    assert plain["Location"].endswith(f"#m-{rows[0].pk}")
    assert f'id="m-{rows[0].pk}"' in owner.get(plain["Location"].split("#")[0]).content.decode()


def test_arrows_come_with_the_end_of_the_stream(
    alice: User, worker: StepWorker, asked: Callable[..., actions_answer.Sent]
) -> None:
    sent = asked("once")
    retry.retry(alice, sent.answer)
    answer(worker, "twice")
    newest = Message.objects.select_related("generation", "conversation").latest("pk")
    html = message.message_html(newest)
    assert "<span>2 / 2</span>" in html
    assert f"/chat/messages/{sent.answer.pk}/select/" in html


# -- forks -------------------------------------------------------------------------------------------------------------


def test_a_fork_has_the_path_the_settings_the_tags_and_the_files(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    first = asked("first", "one")
    asked("failed", "x", reason=FinishReason.ERROR)
    last = asked("last", "two")
    asked("below")
    Attachment.objects.create(
        owner=alice, message=first.message, name="a.txt", media_type="text/plain", text="A", num_bytes=1
    )
    Conversation.objects.filter(pk=conversation.pk).update(system_prompt="Be kind.", temperature=0.5, title="T" * 120)
    conversation.tags.add(Tag.objects.create(owner=alice, name="work"))
    done = owner.post(f"/chat/messages/{last.answer.pk}/fork/", headers=HX)
    assert done["HX-Retarget"] == "#chat"
    fork = Conversation.objects.exclude(pk=conversation.pk).get()
    assert done["HX-Push-Url"] == f"/chat/{fork.pk}/"
    assert path_of(fork) == ["first", "one", "failed", "last", "two"]
    assert (fork.system_prompt, fork.temperature) == ("Be kind.", 0.5)
    assert fork.title.startswith("Fork of TTT")
    assert len(fork.title) == TITLE_CHARS
    assert [tag.name for tag in fork.tags.all()] == ["work"]
    assert fork.messages.order_by("pk")[0].attachments.get().text == "A"
    assert Attachment.objects.count() == 2
    assert not Generation.objects.filter(message__conversation=fork).exists()
    asked("goes on in the old one")
    assert len(path_of(fork)) == 5


def test_a_fork_of_what_is_being_written_is_refused(owner: Client, alice: User, conversation: Conversation) -> None:
    sent = send.send_message(alice, conversation, "why")
    assert owner.post(f"/chat/messages/{sent.answer.pk}/fork/", headers=HX).status_code == 409
    plain = owner.post(f"/chat/messages/{sent.message.pk}/fork/")
    assert plain.status_code == 302
    assert Conversation.objects.count() == 2


def test_a_fork_of_a_fork_is_named_once(alice: User, conversation: Conversation) -> None:
    grown(conversation, 2)
    Conversation.objects.filter(pk=conversation.pk).update(title="Stars")
    fork = tree.fork(alice, Message.objects.latest("pk"))
    again = tree.fork(alice, access.path_of(fork)[-1])
    assert (fork.title, again.title) == ("Fork of Stars", "Fork of Stars")


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_divider_stands_before_the_first_message_still_seen(
    owner: Client, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    asked("first")
    asked("failed", "x", reason=FinishReason.ERROR)
    seen = asked("seen")
    last = asked("last", "end", num_dropped_messages=3)
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    assert page.count('class="cut"') == 1
    assert page.index('class="cut"') < page.index(f'id="m-{seen.message.pk}"')
    assert page.index('class="cut"') > page.index("answer to first")
    row = Message.objects.select_related("generation", "conversation").get(pk=last.answer.pk)
    assert f'<template data-before="m-{seen.message.pk}">' in message.message_html(row)


def test_stopping_is_still_said_after_a_reload(owner: Client, alice: User, conversation: Conversation) -> None:
    sent = send.send_message(alice, conversation, "why")
    send.stop(alice, sent.generation)
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    assert 'data-phase="stopping"' in page
    assert '<span class="now">Stopping</span>' in page


def test_a_settled_thought_is_rendered_as_answers_are(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    send.send_message(alice, conversation, "why")
    attempt = worker.claim().start()
    attempt.think("**hm** <script>")
    attempt.write("so")
    attempt.finish()
    record.record(attempt.id)
    page = owner.get(f"/chat/{conversation.pk}/").content
    assert b"<p><strong>hm</strong> &lt;script&gt;</p>" in page


def test_info_tells_model_numbers_and_times(owner: Client, asked: Callable[..., actions_answer.Sent]) -> None:
    sent = asked("why")
    told = owner.get(f"/chat/messages/{sent.answer.pk}/more/", headers=HX).content.decode()
    for words in (
        MODEL,
        "11 tokens, 4 of them read before",
        "7 tokens, 3 of them thought",
        "step-1",
        "<time datetime=",
    ):
        assert words in told


VERBS = ["edit", "again", "resume", "remove", "fork", "select", "retry"]


@pytest.mark.parametrize("verb", VERBS)
def test_nobody_touches_anothers_messages(
    verb: str, client: Client, bob: User, conversation: Conversation, asked: Callable[..., actions_answer.Sent]
) -> None:
    sent = asked("why")
    client.force_login(bob)
    for pk in (sent.message.pk, sent.answer.pk):
        assert client.post(f"/chat/messages/{pk}/{verb}/", {"text": "x"}).status_code == 404
        if verb in ("edit", "again", "remove"):
            assert client.get(f"/chat/messages/{pk}/{verb}/", headers=HX).status_code == 404
        assert client.get(f"/chat/messages/{pk}/more/").status_code == 404
    assert path_of(conversation) == ["why", "answer to why"]
