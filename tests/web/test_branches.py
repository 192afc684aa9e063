"""The tree of a conversation: versions, edits, deletions and forks, each with what may go wrong beside it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from django.http import Http404
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat import access, actions, branches, dispatch, errors, fragments, recording, viewing
from chatsite.chat.models import TITLE_CHARS, Attachment, Conversation, Generation, Message, Tag
from inference import keys
from inference.protocol import FinishReason
from tests.web.chat_worker import MODEL, StepWorker
from tests.web.test_actions import answer, together

HX = {"HX-Request": "true"}


@pytest.fixture
def owner(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


@pytest.fixture
def asked(alice: User, conversation: Conversation, worker: StepWorker) -> Callable[..., actions.Sent]:
    """A question with its recorded answer, at the end of the shown path."""

    def ask(question: str, *pieces: str, **how: Any) -> actions.Sent:
        conversation.refresh_from_db()
        sent = actions.send_message(alice, conversation, question)
        answer(worker, *(pieces or (f"answer to {question}",)), **how)
        return sent

    return ask


def path_of(conversation: Conversation) -> list[str]:
    conversation.refresh_from_db()
    return [message.content for message in access.path_of(conversation)]


def grown(conversation: Conversation, depth: int, parent: Message | None = None) -> list[Message]:
    """A chain of settled messages, put straight into the table."""
    rows: list[Message] = []
    for index in range(depth):
        role = Message.Role.USER if index % 2 == 0 else Message.Role.ASSISTANT
        above = rows[-1] if rows else parent
        rows.append(Message(conversation=conversation, parent=above, role=role, content=f"message {index}"))
    Message.objects.bulk_create(rows)
    conversation.leaf = rows[-1]
    conversation.save()
    return rows


# -- versions ----------------------------------------------------------------------------------------------------------


def test_a_version_leads_to_where_it_was_last_gone_on_with(
    alice: User, conversation: Conversation, worker: StepWorker, asked: Callable[..., actions.Sent]
) -> None:
    first = asked("first")
    actions.retry(alice, first.answer)
    answer(worker, "another answer")
    actions.select(alice, first.answer)
    asked("after the first answer")
    edited = actions.edit(alice, first.message, "first, differently")
    answer(worker, "an answer to that")
    actions.select(alice, first.message)
    assert path_of(conversation)[-2:] == ["after the first answer", "answer to after the first answer"]
    actions.select(alice, edited.message)
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
    turns = fragments.shown_path(conversation, chain)
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
    alice: User, worker: StepWorker, asked: Callable[..., actions.Sent]
) -> None:
    sent = asked("once")
    actions.retry(alice, sent.answer)
    answer(worker, "twice")
    newest = Message.objects.select_related("generation", "conversation").latest("pk")
    html = fragments.message_html(newest)
    assert "<span>2 / 2</span>" in html
    assert f"/chat/messages/{sent.answer.pk}/select/" in html


# -- once more ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "model", "thinking", "question"),
    [
        ({}, MODEL, None, "why"),
        ({"model": "other"}, "other", None, "why"),
        ({"thinking": "off"}, MODEL, False, "why"),
        ({"thinking": "on"}, MODEL, True, "why"),
        ({"style": "shorter"}, MODEL, None, f"why\n\n{actions.STYLES['shorter']}"),
    ],
)
def test_an_answer_is_written_again_in_another_way_for_once(
    form: dict[str, str],
    model: str,
    thinking: bool | None,
    question: str,
    owner: Client,
    conversation: Conversation,
    asked: Callable[..., actions.Sent],
    worker: StepWorker,
) -> None:
    sent = asked("why")
    Generation.objects.filter(message=sent.answer).update(model="other")  # the site has known it
    done = owner.post(f"/chat/messages/{sent.answer.pk}/again/", form, headers=HX)
    assert done.status_code == 200
    generation = Generation.objects.get(status="active")
    assert generation.model == model
    frozen = dispatch.frozen_request_of(generation)
    assert (frozen.thinking, frozen.messages[-1].content) == (thinking, question)
    conversation.refresh_from_db()
    assert (conversation.model, conversation.thinking) == ("", None)
    assert path_of(conversation) == ["why", ""]


def test_unknown_ways_are_refused(owner: Client, asked: Callable[..., actions.Sent]) -> None:
    sent = asked("why")
    for form in ({"model": "nobody's"}, {"style": "longer"}):
        refused = owner.post(f"/chat/messages/{sent.answer.pk}/again/", form, headers=HX)
        assert (refused.status_code, refused["HX-Retarget"]) == (400, "#refusal")
    assert not Generation.objects.filter(status="active").exists()


def test_the_ways_are_offered_with_what_is_served(
    owner: Client, asked: Callable[..., actions.Sent], worker: StepWorker
) -> None:
    sent = asked("why")
    Generation.objects.filter(message=sent.answer).update(model="older")
    worker.announce()
    ways = owner.get(f"/chat/messages/{sent.answer.pk}/again/", headers=HX).content.decode()
    assert f'name="model" value="{MODEL}"' in ways
    assert 'value="shorter"' in ways
    assert 'name="thinking" value="on"' in ways
    assert "<!doctype" not in ways
    assert "<!doctype" in owner.get(f"/chat/messages/{sent.answer.pk}/again/").content.decode()


def test_a_question_whose_answer_was_deleted_is_answered_anew(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions.Sent], worker: StepWorker
) -> None:
    sent = asked("why")
    branches.remove(alice, sent.answer)
    assert b"Answer this" in owner.get(f"/chat/{conversation.pk}/").content
    owner.post(f"/chat/messages/{sent.message.pk}/retry/")
    answer(worker, "because")
    assert path_of(conversation) == ["why", "because"]


def test_a_stopped_answer_offers_to_go_on(
    owner: Client, conversation: Conversation, asked: Callable[..., actions.Sent]
) -> None:
    sent = asked("why", "Because of", reason=FinishReason.CANCELLED)
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    assert f"/chat/messages/{sent.answer.pk}/resume/" in page
    assert owner.post(f"/chat/messages/{sent.answer.pk}/resume/", headers=HX).status_code == 200
    assert Generation.objects.get(status="active").message.parent_id == sent.message.pk  # type: ignore[union-attr]
    assert owner.post(f"/chat/messages/{sent.answer.pk}/resume/", headers=HX).status_code == 409


# -- another text ------------------------------------------------------------------------------------------------------


def test_an_edited_question_branches_once_per_press_and_takes_its_files_along(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions.Sent], worker: StepWorker
) -> None:
    sent = asked("why")
    Attachment.objects.create(
        owner=alice, message=sent.message, name="a.txt", media_type="text/plain", text="A", num_bytes=1
    )
    form = owner.get(f"/chat/messages/{sent.message.pk}/edit/", headers=HX).content.decode()
    assert "<textarea" in form
    key = re.search(r'name="key" value="([^"]+)"', form)
    assert key
    for _press in range(2):
        done = owner.post(f"/chat/messages/{sent.message.pk}/edit/", {"text": "why not", "key": key[1]}, headers=HX)
        assert done.status_code == 200
    answer(worker, "because")
    assert path_of(conversation) == ["why not", "because"]
    assert conversation.messages.filter(role="user").count() == 2
    assert conversation.messages.get(content="why not").attachments.get().name == "a.txt"


def test_an_edited_answer_stays_where_it_is_and_is_what_the_model_reads(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions.Sent]
) -> None:
    sent = asked("why", "Because.")
    asked("and then?")
    before = Generation.objects.get(message=sent.answer).content_sha256
    done = owner.post(f"/chat/messages/{sent.answer.pk}/edit/", {"text": "Be\r\n**cause**"}, headers=HX)
    assert b"edited" in done.content
    assert b"<strong>cause</strong>" in done.content
    assert path_of(conversation)[:2] == ["why", "Be\n**cause**"]
    assert len(path_of(conversation)) == 4
    assert Generation.objects.get(message=sent.answer).content_sha256 == before, "what the model wrote stays on record"
    request = actions.send_message(alice, conversation, "so?").generation.request
    assert "Be\\n**cause**" in request


def test_saving_the_same_text_marks_nothing(owner: Client, asked: Callable[..., actions.Sent]) -> None:
    sent = asked("why", "\nOne\n\ntwo\n")
    owner.post(f"/chat/messages/{sent.answer.pk}/edit/", {"text": "One\r\n\r\ntwo"})
    row = Message.objects.get(pk=sent.answer.pk)
    assert (row.content, row.edited_at) == ("\nOne\n\ntwo\n", None)


def test_an_edited_answer_that_had_failed_is_read_by_the_model(
    alice: User, conversation: Conversation, asked: Callable[..., actions.Sent]
) -> None:
    sent = asked("why", "Bec", reason=FinishReason.ERROR)
    branches.rewrite(alice, sent.answer, "Because.")
    request = actions.send_message(alice, conversation, "so?").generation.request
    assert "Because." in request


@pytest.mark.parametrize(("text", "status"), [(" \n", 400), ("x" * 100_001, 413)])
def test_a_text_that_cannot_be_is_refused_and_comes_back_without_a_script(
    text: str, status: int, owner: Client, asked: Callable[..., actions.Sent]
) -> None:
    sent = asked("why")
    for message in (sent.message, sent.answer):
        assert owner.post(f"/chat/messages/{message.pk}/edit/", {"text": text}, headers=HX).status_code == status
        page = owner.post(f"/chat/messages/{message.pk}/edit/", {"text": text})
        assert page.status_code == status
        assert text.encode() in page.content
    assert Message.objects.count() == 2


def test_an_edit_of_what_is_being_written_is_refused(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions.Sent]
) -> None:
    first = asked("why")
    running = actions.send_message(alice, conversation, "and?")
    for pk in (running.answer.pk, first.message.pk):
        assert owner.post(f"/chat/messages/{pk}/edit/", {"text": "other"}, headers=HX).status_code == 409
    assert owner.post(f"/chat/messages/{first.answer.pk}/edit/", {"text": "other"}, headers=HX).status_code == 200


def test_a_stream_of_an_edited_answer_tells_the_hash_of_the_text_it_tells(
    alice: User, asked: Callable[..., actions.Sent]
) -> None:
    sent = asked("why", "Because.")
    branches.rewrite(alice, sent.answer, "Otherwise.")
    row = Generation.objects.select_related("message").get(message=sent.answer)
    told = viewing._snapshot(row).data
    assert (told["content"], told["is_edited"]) == ("Otherwise.", True)
    assert told["content_sha256"] == recording.sha256_of("Otherwise.")


# -- deletion ----------------------------------------------------------------------------------------------------------


def test_deleting_takes_what_follows_on_every_branch_and_redis_forgets_it(
    owner: Client,
    alice: User,
    conversation: Conversation,
    asked: Callable[..., actions.Sent],
    worker: StepWorker,
    redis: redis_py.Redis,
) -> None:
    kept, gone = asked("kept"), asked("gone")
    asked("below")
    actions.retry(alice, gone.answer)
    answer(worker, "another")
    doomed = list(Generation.objects.exclude(message=kept.answer).values_list("pk", flat=True))
    assert all(redis.exists(keys.log(pk)) for pk in doomed)
    panel = owner.get(f"/chat/messages/{gone.message.pk}/remove/", headers=HX).content.decode()
    assert "5 messages" in panel
    done = owner.post(f"/chat/messages/{gone.message.pk}/remove/", {"number": "5"}, headers=HX)
    assert done.status_code == 200
    assert path_of(conversation) == ["kept", "answer to kept"]
    assert Message.objects.count() == 2
    assert not any(redis.exists(keys.log(pk)) for pk in doomed)


def test_after_deleting_a_version_the_one_beside_it_is_shown(
    alice: User, conversation: Conversation, asked: Callable[..., actions.Sent], worker: StepWorker
) -> None:
    sent = asked("why", "one")
    for text in ("two", "three"):
        newest = actions.retry(alice, sent.answer)
        answer(worker, text)
    two = Message.objects.get(content="two")
    actions.select(alice, two)
    branches.remove(alice, two)
    assert path_of(conversation) == ["why", "one"]
    branches.remove(alice, sent.answer)
    assert path_of(conversation) == ["why", "three"]
    branches.remove(alice, newest.answer)
    assert path_of(conversation) == ["why"]
    branches.remove(alice, sent.message)
    assert path_of(conversation) == []


def test_deleting_elsewhere_leaves_what_is_shown(
    alice: User, conversation: Conversation, asked: Callable[..., actions.Sent], worker: StepWorker
) -> None:
    sent = asked("why", "one")
    actions.retry(alice, sent.answer)
    answer(worker, "two")
    branches.remove(alice, sent.answer)
    assert path_of(conversation) == ["why", "two"]


def test_nothing_is_deleted_above_an_answer_that_is_being_written(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions.Sent], worker: StepWorker
) -> None:
    first = asked("why")
    actions.send_message(alice, conversation, "and?")
    refused = owner.post(f"/chat/messages/{first.message.pk}/remove/", headers=HX)
    assert (refused.status_code, refused["HX-Retarget"]) == (409, "#refusal")
    assert Message.objects.count() == 4
    answer(worker, "so")
    owner.post(f"/chat/messages/{first.message.pk}/remove/")
    assert Message.objects.count() == 0


def test_more_than_was_said_is_not_deleted(
    owner: Client, conversation: Conversation, asked: Callable[..., actions.Sent]
) -> None:
    first = asked("why")
    asked("and?")
    refused = owner.post(f"/chat/messages/{first.message.pk}/remove/", {"number": "2"}, headers=HX)
    assert refused.status_code == 409
    assert b"4 messages" in refused.content
    assert Message.objects.count() == 4


def test_a_deep_tree_goes_as_one(alice: User, conversation: Conversation) -> None:
    rows = grown(conversation, 1_200)
    assert branches.num_below(alice, rows[1]) == 1_199
    branches.remove(alice, rows[1])
    assert path_of(conversation) == ["message 0"]
    assert conversation.messages.count() == 1


def test_sending_and_deleting_at_once_leave_a_whole_tree(
    alice: User, conversation: Conversation, asked: Callable[..., actions.Sent]
) -> None:
    asked("kept")
    sent = asked("why")
    calls = [
        lambda: branches.remove(alice, sent.message),
        lambda: actions.send_message(alice, Conversation.objects.get(pk=conversation.pk), "and?"),
        lambda: actions.retry(alice, sent.answer),
        lambda: actions.edit(alice, sent.message, "other"),
    ]
    results = together(*calls)
    for result in results:
        assert isinstance(result, (Conversation, actions.Sent, errors.AnswerRunning, Http404)), result
    assert sum(isinstance(result, actions.Sent) for result in results) == 1
    assert path_of(conversation)[:2] == ["kept", "answer to kept"]
    assert Generation.objects.get(status="active").message.pk == conversation.leaf_id  # type: ignore[union-attr]


def test_a_press_of_send_repeated_after_its_answer_was_deleted_is_refused(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    key = uuid.uuid4()
    sent = actions.send_message(alice, conversation, "why", idempotency_key=key)
    answer(worker, "so")
    branches.remove(alice, sent.answer)
    with pytest.raises(errors.AnswerGone):
        actions.send_message(alice, conversation, "why", idempotency_key=key)
    assert conversation.messages.count() == 1


# -- forks -------------------------------------------------------------------------------------------------------------


def test_a_fork_has_the_path_the_settings_the_tags_and_the_files(
    owner: Client, alice: User, conversation: Conversation, asked: Callable[..., actions.Sent]
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
    sent = actions.send_message(alice, conversation, "why")
    assert owner.post(f"/chat/messages/{sent.answer.pk}/fork/", headers=HX).status_code == 409
    plain = owner.post(f"/chat/messages/{sent.message.pk}/fork/")
    assert plain.status_code == 302
    assert Conversation.objects.count() == 2


def test_a_fork_of_a_fork_is_named_once(alice: User, conversation: Conversation) -> None:
    grown(conversation, 2)
    Conversation.objects.filter(pk=conversation.pk).update(title="Stars")
    fork = branches.fork(alice, Message.objects.latest("pk"))
    again = branches.fork(alice, access.path_of(fork)[-1])
    assert (fork.title, again.title) == ("Fork of Stars", "Fork of Stars")


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_divider_stands_before_the_first_message_still_seen(
    owner: Client, conversation: Conversation, asked: Callable[..., actions.Sent]
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
    assert f'<template data-before="m-{seen.message.pk}">' in fragments.message_html(row)


def test_stopping_is_still_said_after_a_reload(owner: Client, alice: User, conversation: Conversation) -> None:
    sent = actions.send_message(alice, conversation, "why")
    actions.stop(alice, sent.generation)
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    assert 'data-phase="stopping"' in page
    assert '<span class="now">Stopping</span>' in page


def test_a_settled_thought_is_rendered_as_answers_are(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    actions.send_message(alice, conversation, "why")
    attempt = worker.claim().start()
    attempt.think("**hm** <script>")
    attempt.write("so")
    attempt.finish()
    recording.record(attempt.id)
    page = owner.get(f"/chat/{conversation.pk}/").content
    assert b"<p><strong>hm</strong> &lt;script&gt;</p>" in page


def test_info_tells_model_numbers_and_times(owner: Client, asked: Callable[..., actions.Sent]) -> None:
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
    verb: str, client: Client, bob: User, conversation: Conversation, asked: Callable[..., actions.Sent]
) -> None:
    sent = asked("why")
    client.force_login(bob)
    for pk in (sent.message.pk, sent.answer.pk):
        assert client.post(f"/chat/messages/{pk}/{verb}/", {"text": "x"}).status_code == 404
        if verb in ("edit", "again", "remove"):
            assert client.get(f"/chat/messages/{pk}/{verb}/", headers=HX).status_code == 404
        assert client.get(f"/chat/messages/{pk}/more/").status_code == 404
    assert path_of(conversation) == ["why", "answer to why"]
