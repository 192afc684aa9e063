"""Export and import: what leaves comes back equal, what is broken leaves no trace, and no file does harm."""

from __future__ import annotations

import datetime
import io
import json
import uuid
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import Http404
from django.test import AsyncClient, Client
from django.utils.http import parse_header_parameters

from chatsite.accounts.models import User
from chatsite.chat.actions import attachments, feedback, retry, send
from chatsite.chat.actions import tree as actions_tree
from chatsite.chat.generation import record as generation_record
from chatsite.chat.models import Attachment, Conversation, Feedback, Generation, Message, Tag
from chatsite.chat.queries import access
from chatsite.transfer import importing, reading, records, writing
from chatsite.transfer.errors import ImportRefused
from chatsite.transfer.importing import Summary, import_file
from chatsite.transfer.models import Origin
from inference.messages.generation import FinishReason
from tests.web import exports
from tests.web.chat_worker import StepWorker


def answer(worker: StepWorker, *pieces: str, thought: str = "", reason: FinishReason = FinishReason.STOP) -> None:
    attempt = worker.claim().start()
    if thought:
        attempt.think(thought)
    attempt.write(*pieces)
    attempt.finish(reason)
    generation_record.record(attempt.id)


@pytest.fixture
def rich(alice: User, conversation: Conversation, worker: StepWorker) -> Conversation:
    """With a branch, a thought, a file, an opinion, settings, tags, a stopped answer and hostile text."""
    file = attachments.add(alice, conversation, "n.txt", b"a fact")
    first = send.send_message(alice, conversation, "Why <b>?", attachments=[file.pk])
    answer(worker, "**Be", "cause** <script>alert(1)</script> ![x](https://evil.example/?q=1)", thought="hm\nhm")
    feedback.give(alice, first.answer, -1, reason="wrong", comment="no")
    retry.retry(alice, first.answer)
    answer(worker, "Other", reason=FinishReason.CANCELLED)
    send.edit(alice, first.message, "Why not?")
    answer(worker, "Edited")
    actions_tree.select(alice, first.answer)
    row = Conversation.objects.get(pk=conversation.pk)
    row.title, row.is_title_own, row.system_prompt = "My </style> “title”", True, "Be brief."
    row.temperature, row.thinking, row.max_tokens = 0.3, True, 99
    row.pinned_at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    row.save()
    row.tags.add(Tag.objects.create(owner=alice, name="work"))
    return row


def brought_in(user: User, data: Any) -> Summary:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return import_file(user, io.BytesIO(raw), len(raw))


def untouched(record: records.ConversationRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(records.encode(record))["conversation"]
    return {**found, "id": ""}


def tree(conversation: Conversation) -> list[tuple[str, str, str]]:
    rows = conversation.messages.select_related("parent").order_by("pk")
    return [(row.role, row.content, row.parent.content if row.parent else "") for row in rows]


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_export_and_import_give_the_same_conversation(rich: Conversation, bob: User) -> None:
    record = reading.record_of(rich)
    assert len(record.messages) == 5
    summary = brought_in(bob, records.encode(record))
    assert (summary.num_new, summary.num_messages) == (1, 5)
    copy = access.conversations_of(bob).get()
    assert untouched(reading.record_of(copy)) == untouched(record)
    assert [m.content for m in access.path_of(copy)] == [m.content for m in access.path_of(rich)]
    assert copy.messages.filter(generation__isnull=False).count() == 3
    assert (Attachment.objects.filter(owner=bob).count(), Feedback.objects.count()) == (
        2,
        2,
    )  # the edited question has its file too
    newest = Generation.objects.filter(user=bob).latest("created_at")
    assert newest.pk.int >> 80 == int(newest.created_at.timestamp() * 1000)  # ids carry the time of the original


def test_same_file_twice_and_ones_own_export_add_nothing(rich: Conversation, alice: User, bob: User) -> None:
    data = records.encode(reading.record_of(rich))
    assert brought_in(alice, data).num_known == 1  # it is still here
    assert brought_in(bob, data).num_new == 1
    again = brought_in(bob, data)
    assert (again.num_new, again.num_known) == (0, 1)
    assert access.conversations_of(bob).count() == 1
    actions_before = Message.objects.count()
    access.conversations_of(bob).get().delete()
    assert brought_in(bob, data).num_new == 1  # deleted there: wanted again
    assert Message.objects.count() == actions_before
    rich.delete()
    assert brought_in(alice, data).num_new == 1


def test_conversation_goes_on_after_its_import(rich: Conversation, bob: User, worker: StepWorker) -> None:
    brought_in(bob, records.encode(reading.record_of(rich)))
    copy = access.conversations_of(bob).get()
    shown = access.path_of(copy)[-1]
    sent = send.send_message(bob, copy, "and then?")
    assert sent.message.parent_id == shown.pk
    assert sent.message.pk > shown.pk
    assert "a fact" in worker.claim().claim.request.messages[1].content


def test_answer_being_written_is_left_out(alice: User, conversation: Conversation) -> None:
    send.send_message(alice, conversation, "hi")
    conversation.refresh_from_db()
    record = reading.record_of(conversation)
    assert [(message.role, message.content) for message in record.messages] == [("user", "hi")]
    assert record.leaf == 0


async def test_all_conversations_come_as_one_zip_that_can_be_imported(
    rich: Conversation, alice: User, bob: User
) -> None:
    from channels.db import database_sync_to_async as in_thread

    await in_thread(send.start_conversation)(alice)
    await in_thread(send.start_conversation)(bob)
    client = AsyncClient()
    await in_thread(client.force_login)(alice)
    response: Any = await client.get("/transfer/all.zip")
    data = b"".join([piece async for piece in response])
    assert response["Content-Type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
    assert len(names) == 4
    assert not any(".." in name or name.startswith("/") for name in names)
    summary = await in_thread(brought_in)(bob, data)
    assert summary.num_new == 2
    assert (await in_thread(brought_in)(bob, data)).num_known == 2


def test_markdown_has_the_shown_path(rich: Conversation, alice: User) -> None:
    text = signed_in(alice).get(f"/chat/{rich.pk}/export/md/").content.decode()
    assert text.startswith("# My </style> “title”\n")
    for part in ("## You\n\n- File: n.txt\n\nWhy <b>?", "**Because**", "## Instructions\n\nBe brief."):
        assert part in text
    assert "Edited" not in text
    assert "hm" not in text
    assert "> hm\n> hm" in signed_in(alice).get(f"/chat/{rich.pk}/export/md/?thoughts=1").content.decode()


def test_html_stands_alone_and_runs_nothing(rich: Conversation, alice: User) -> None:
    import base64
    import hashlib
    import re

    text = signed_in(alice).get(f"/chat/{rich.pk}/export/html/").content.decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    rest = text.replace(style[0], "").lower()
    for banned in ("<script", "<img", "<link", "<iframe", " style=", "javascript:", "onerror="):
        assert banned not in rest
    assert "<strong>Because</strong>" in text
    assert "&lt;script&gt;" in text


def test_nobody_exports_the_conversation_of_another(rich: Conversation, bob: User) -> None:
    for form in writing.FORMS:
        assert signed_in(bob).get(f"/chat/{rich.pk}/export/{form}/").status_code == 404
        assert Client().get(f"/chat/{rich.pk}/export/{form}/").status_code == 302
    assert signed_in(rich.owner).get(f"/chat/{rich.pk}/export/exe/").status_code == 404


@pytest.mark.parametrize(
    "title",
    [
        'a"; filename="evil.exe',
        "../../etc/passwd",
        "con",
        "CON.txt",
        "x\r\nSet-Cookie: a=b",
        "日本語 🎉",
        "",
        "." * 99,
        "a" * 120,
    ],
)
def test_names_of_files_are_safe_whatever_the_title(title: str, alice: User, conversation: Conversation) -> None:
    Conversation.objects.filter(pk=conversation.pk).update(title=title)
    response = signed_in(alice).get(f"/chat/{conversation.pk}/export/md/")
    assert response.status_code == 200
    header = response["Content-Disposition"]
    assert header.startswith("attachment; filename")
    _kind, parameters = parse_header_parameters(header)
    assert len(parameters) == 1
    name = writing.file_name(records.ConversationRecord(id="", title=title), "md")
    assert name.endswith(".md")
    assert not set(name) & set('<>:"/\\|?*\r\n')
    assert not name.startswith(".")
    assert name.lower().split(".")[0] not in ("con", "")
    assert len(name) < 90


def test_chatgpt(alice: User) -> None:
    summary = brought_in(alice, exports.chatgpt())
    found = access.conversations_of(alice).get()
    assert (found.title, found.archived_at) == ("Cats & <legs>", found.updated_at)
    assert found.created_at == datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
    assert tree(found) == [
        ("user", "How many legs has a cat?", ""),
        ("assistant", "Four.", "How many legs has a cat?"),
        ("user", "And this one?", "Four."),
        ("assistant", "It has none.", "And this one?"),
        ("assistant", "Three.", "And this one?"),
    ]
    assert [message.content for message in access.path_of(found)][-1] == "It has none."
    thought = found.messages.get(content="Four.")
    assert (thought.reasoning, thought.generation.model) == ("let me think", "o-model")
    assert thought.created_at == datetime.datetime.fromtimestamp(1_700_000_002.5, datetime.UTC)
    assert dict(+summary.notes) == {"calls of tools": 2, "images and sounds": 1}
    assert any("2 × calls of tools" in sentence for sentence in summary.sentences())
    assert brought_in(alice, exports.chatgpt()).num_known == 1


@pytest.mark.parametrize("is_tree", [False, True])
def test_librechat(alice: User, is_tree: bool) -> None:
    summary = brought_in(alice, exports.librechat(is_tree=is_tree))
    found = access.conversations_of(alice).get()
    assert (found.title, found.system_prompt, found.temperature) == ("Greeting", "Be kind.", 0.5)
    assert tree(found) == [
        ("user", "Hello", ""),
        ("assistant", "Hi.", "Hello"),
        ("assistant", "Hello there", "Hello"),
    ]
    answer_ = found.messages.get(content="Hi.")
    assert (answer_.reasoning, answer_.feedback.rating, answer_.generation.model) == ("hm", -1, "gpt-x")
    assert found.messages.get(content="Hello there").generation.status == "stopped"
    assert found.created_at == datetime.datetime(2024, 5, 1, 10, tzinfo=datetime.UTC)
    assert dict(+summary.notes) == {"calls of tools": 1}


def test_open_webui(alice: User) -> None:
    summary = brought_in(alice, exports.open_webui())
    found = access.conversations_of(alice).get()
    assert (found.title, found.system_prompt, found.pinned_at) == ("Numbers", "Be exact.", found.updated_at)
    assert [tag.name for tag in found.tags.all()] == ["maths"]
    assert tree(found) == [
        ("user", "1 < 2?", ""),
        ("assistant", "Yes.", "1 < 2?"),
        ("assistant", "Of course.", "1 < 2?"),
    ]
    said = found.messages.get(content="Yes.")
    assert said.reasoning == "1 < 2\nso"
    assert (said.feedback.rating, said.feedback.comment) == (1, "accurate: nice")
    assert [message.content for message in access.path_of(found)] == ["1 < 2?", "Yes."]
    assert dict(+summary.notes) == {"attached files": 1}
    (inner,) = exports.open_webui()
    assert brought_in(alice, inner["chat"]).num_new == 1  # a chat exported alone


def deep() -> bytes:
    return b"[" + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"]"


def circle() -> list[Any]:
    chat = exports.chatgpt()
    chat[0]["mapping"]["q1"]["parent"] = "a1"
    return chat


def ours(**changes: Any) -> bytes:
    message = {"role": "user", "content": "hi", **changes}
    return json.dumps(
        {"format": records.FORMAT, "version": 1, "conversation": {"id": "x", "messages": [message]}}
    ).encode()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "This is no JSON"),
        (b"[]", "no conversation in the file"),
        (b"[1]", "conversation 1: It is no conversation of a program"),
        (b'{"a": 1}', "It is no conversation of a program"),
        (b"{broken", "This is no JSON: Expecting property name"),
        (b"[{]", "conversation 1: This is no JSON"),
        (b'{"a": 1} x', "something follows its end"),
        (b'[{"a": 1', "no JSON"),
        (b'{"a": "\xff\xfe"}', "UTF-8|utf-8"),
        (deep(), "nested too deeply"),
        (circle(), "in a circle"),
        ([{"mapping": {"a": {"message": {"author": 1}}}}], r"conversation 1: Expected `object`, got `int`.*mapping"),
        ([{"title": "Lost", "mapping": None}], "conversation 1 “Lost”: Expected `object`, got `null`"),
        (ours(role="tool"), r"Invalid enum value 'tool'.*messages\[0\]\.role"),
        (ours(parent=0), r"messages\[0\]\.parent must name"),
        (ours(created_at="yesterday"), r"created_at"),
        (ours(created_at="0001-01-01T00:00:00+14:00"), r"messages\[0\] has a time that is none"),
        (ours(created_at="9999-12-31T23:59:59-14:00"), r"messages\[0\] has a time that is none"),
        (ours(content=7), r"Expected `str`, got `int`.*content"),
        (ours(answer={"model": "x"}), "is a question"),
        (ours(files=[{"name": "a", "text": "x" * 101}]), r"files\[0\].text has 101 characters; at most 100"),
        (ours().replace(b'"version": 1', b'"version": 9'), "of version 9"),
        (b"PK\x03\x04 and no more", "zip file is damaged"),
        (b"x" * 200_001, "larger than"),
    ],
    ids=range(24),
)
def test_bad_file_is_refused_by_what_is_wrong_and_leaves_nothing(
    alice: User, site: Callable[..., None], data: Any, sentence: str
) -> None:
    site(max_import_bytes=200_000 if data != deep() else 10_000_000, max_file_chars=100)
    with pytest.raises(ImportRefused, match=sentence):
        brought_in(alice, data)
    assert not Conversation.objects.exists()
    assert not Origin.objects.exists()


def test_limits_of_count_and_of_what_is_unpacked(
    alice: User, site: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    site(max_conversation_messages=4)
    with pytest.raises(ImportRefused, match="has 5 messages; at most 4"):
        brought_in(alice, exports.chatgpt())
    site(max_conversation_messages=10, max_import_bytes=100_000)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", b"[" + b" " * 10_000_000 + b"]")
    with pytest.raises(ImportRefused, match="larger than"):
        brought_in(alice, out.getvalue())
    monkeypatch.setattr(importing, "MAX_CONVERSATIONS", 2)
    with pytest.raises(ImportRefused, match="more than 2 conversations"):
        brought_in(alice, exports.open_webui() * 3)
    assert not Conversation.objects.exists()


def test_a_long_path_is_read_without_recursion(alice: User) -> None:
    chat = exports.chatgpt()[0]
    template = chat["mapping"]["q1"]
    chain = {"n0": {**template, "id": "n0", "parent": None}}
    for number in range(1, 1_200):
        author = {"role": "assistant" if number % 2 else "user"}
        message = {**template["message"], "author": author, "create_time": 1_700_000_000 + number}
        chain[f"n{number}"] = {"id": f"n{number}", "parent": f"n{number - 1}", "message": message}
    chat["mapping"] = dict(reversed(chain.items()))
    chat["current_node"] = "n1199"
    assert brought_in(alice, [chat]).num_messages == 1_200
    assert len(access.path_of(access.conversations_of(alice).get())) == 1_200


def test_zip_of_chatgpt_reads_its_conversations_alone(alice: User) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("export/user.json", b'{"id": 1}')
        archive.writestr("export/conversations.json", json.dumps(exports.chatgpt()))
        archive.writestr("chat.html", b"<html>")
    assert brought_in(alice, out.getvalue()).num_new == 1


def test_text_that_postgres_cannot_hold_is_cleaned(alice: User) -> None:
    data = ours(content="a\u0000b").replace(b'"id": "x"', b'"id": "x", "title": "t\\ud83d"')
    brought_in(alice, data)
    found = access.conversations_of(alice).get()
    assert tree(found) == [("user", "ab", "")]


def test_page_says_what_became_of_the_file(alice: User, redis: Any) -> None:
    client = signed_in(alice)
    upload = SimpleUploadedFile("<b>.json", json.dumps(exports.chatgpt()).encode())
    page = client.post("/transfer/import/", {"file": upload}, follow=True).content.decode()
    assert "1 conversation with 5 messages was imported (ChatGPT)" in page
    bad = client.post("/transfer/import/", {"file": SimpleUploadedFile("<b>.json", b"{")})
    assert bad.status_code == 400
    assert "Nothing was imported." in bad.content.decode()
    assert "&lt;b&gt;.json" in bad.content.decode()
    assert client.post("/transfer/import/").status_code == 400
    assert Client().post("/transfer/import/").status_code == 302
    with pytest.raises(Http404):
        access.conversation_of(alice, uuid.uuid4())
