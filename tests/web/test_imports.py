"""What can be read of a file of conversations comes in, what cannot is named, and what is about other things is not."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from chatsite.accounts.models import User
from chatsite.chat.queries import access
from chatsite.transfer import opening
from chatsite.transfer.errors import ImportRefused
from tests.web import exports
from tests.web.test_transfer import brought_in, ours, signed_in, tree


def chats(*titles: str) -> list[dict[str, Any]]:
    found = []
    for number, title in enumerate(titles):
        (chat,) = exports.chatgpt()
        found.append({**chat, "title": title, "conversation_id": f"id-{number}-{title}"})
    return found


def zipped(**members: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content if isinstance(content, bytes) else json.dumps(content))
    return out.getvalue()


def titles(user: User) -> list[str]:
    return sorted(access.conversations_of(user).values_list("title", flat=True))


OTHERS: dict[str, Any] = {
    "user.json": {"id": "user-1", "email": "a@example.org"},
    "message_feedback.json": [{"id": "m", "conversation_id": "c", "rating": "thumbs_up"}],
    "shared_conversations.json": [{"id": "s", "conversation_id": "c", "title": "Shared"}],
    "chat.html": b"<html></html>",
}


def test_numbered_files_of_a_zip_are_all_read_and_the_others_passed_over(alice: User) -> None:
    numbered = {"conversations-000.json": chats("One", "Two"), "conversations-001.json": chats("Three")}
    summary = brought_in(alice, zipped(**numbered, **OTHERS))
    assert titles(alice) == ["One", "Three", "Two"]
    assert summary.complaints() == []
    assert sorted(summary.passed_over) == ["message_feedback.json", "shared_conversations.json", "user.json"]


def test_files_are_known_by_what_is_in_them_not_by_their_names(alice: User) -> None:
    data = {"export/user.json": chats("Named like another"), "conversations.json": OTHERS["message_feedback.json"]}
    assert brought_in(alice, zipped(**data)).num_new == 1
    assert brought_in(alice, zipped(**{"a.JSON": exports.claude(), "b.json": exports.deepseek()})).num_new == 2


def test_a_zip_of_other_things_says_that_there_is_no_conversation(alice: User) -> None:
    with pytest.raises(ImportRefused, match="There is no conversation in the file"):
        brought_in(alice, zipped(**OTHERS))


def test_what_a_mac_puts_beside_each_file_is_passed_over(alice: User) -> None:
    junk = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X"
    data = {"a.json": chats("One"), "__MACOSX/._a.json": junk, "x/__MACOSX/a.json": junk, "x/._b.json": junk}
    assert brought_in(alice, zipped(**data)).complaints() == []
    assert titles(alice) == ["One"]


@pytest.mark.parametrize("broken", ["author", "content"])
def test_one_bad_conversation_of_three_is_named_and_the_others_come_in(alice: User, broken: str) -> None:
    found = chats("First", "Second <b>", "Third")
    found[1]["mapping"]["q1"]["message"][broken] = None
    summary = brought_in(alice, found)
    assert titles(alice) == ["First", "Third"]
    (complaint,) = summary.complaints()
    assert complaint.startswith("conversation 2 “Second <b>”: Expected `object`, got `null`")
    assert broken in complaint
    assert brought_in(alice, found).num_known == 2
    upload = SimpleUploadedFile("a.json", json.dumps(found).encode())
    page = signed_in(alice).post("/transfer/import/", {"file": upload}, follow=True).content.decode()
    assert "Not imported: conversation 2 “Second &lt;b&gt;”" in page


def test_faults_of_every_kind_cost_their_own_conversation_alone(alice: User, site: Callable[..., None]) -> None:
    site(max_conversation_messages=50)
    circle, long, strange, empty = chats("Circle", "Long", "Strange", "Nothing")
    circle["mapping"]["q1"]["parent"] = "a1"
    chain = long["mapping"]["q1"]
    long["mapping"] = {
        f"n{n}": {**chain, "parent": f"n{n - 1}", "message": {**chain["message"], "author": {"role": role}}}
        for n in range(60)
        for role in ("user" if n % 2 else "assistant",)
    }
    empty["mapping"] = None
    found = [*chats("Good"), circle, 7, long, {**strange, "title": 7}, empty, *chats("Also good")]
    summary = brought_in(alice, found)
    assert titles(alice) == ["Also good", "Good"]
    places = [complaint.split(":")[0] for complaint in summary.complaints()]
    assert sorted(places) == [
        "conversation 2 “Circle”",
        "conversation 3",
        "conversation 4 “Long”",
        "conversation 5",
        "conversation 6 “Nothing”",
    ]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 400, "9" * 5_000])
def test_a_number_that_is_none_costs_at_most_its_own_conversation(alice: User, number: str) -> None:
    text = json.dumps(chats("One", "Two"))
    text = text.replace('"create_time": 1700000004.25', f'"create_time": {number}', 1)
    call = f'{{"id": "c", "name": "time", "seconds": {number}}}'
    mine = ours(role="assistant", content="x").decode().replace('"role"', f'"calls": [{call}], "role"')
    summary = brought_in(alice, f"[{mine}, {text[1:]}".encode())
    assert summary.num_new == 2
    assert summary.complaints()[0].startswith("conversation 1: Expected `float`, got `null`")


def test_a_file_that_was_cut_gives_what_is_whole(alice: User) -> None:
    data = json.dumps(chats("One", "Two", "Three")).encode()
    summary = brought_in(alice, data[: int(len(data) * 0.8)])
    assert titles(alice) == ["One", "Two"]
    (complaint,) = summary.complaints()
    assert complaint.startswith("conversation 3: This is no JSON")


def test_a_broken_file_in_a_zip_is_named_and_costs_no_other(alice: User) -> None:
    summary = brought_in(alice, zipped(**{"conversations-0.json": chats("One"), "conversations-1.json": b"\x80{"}))
    assert titles(alice) == ["One"]
    assert summary.complaints()[0].startswith("conversations-1.json: This is no JSON")


def test_many_failures_are_counted_not_all_told(alice: User) -> None:
    summary = brought_in(alice, [*chats("One"), *[{"mapping": None}] * 30])
    assert len(summary.complaints()) == 21
    assert summary.complaints()[-1] == "10 more were not imported."


@pytest.mark.parametrize("half", [b"\\ud83d", b"\\uDE00", b"\xed\xa0\xbd"], ids=["high", "low", "raw"])
def test_half_a_surrogate_is_replaced_in_the_one_that_has_it(alice: User, half: bytes) -> None:
    data = json.dumps(chats("One", "Half X", "Three \N{GRINNING FACE} \\ud83d")).encode()
    assert brought_in(alice, data.replace(b"Half X", b"Half " + half)).complaints() == []
    assert titles(alice)[0] in ("Half \ufffd", "Half \ufffd\ufffd\ufffd")
    assert titles(alice)[1:] == ["One", "Three \N{GRINNING FACE} \\ud83d"]


def test_half_a_surrogate_anywhere_in_a_file_of_ours_breaks_nothing(alice: User) -> None:
    call = {"id": "c\ud83d", "name": "time", "arguments": '{"zone": "\ud83d"}', "result": "\udc00"}
    text = ours(role="assistant", calls=[call], content="\ud83d").decode()
    assert brought_in(alice, text.encode()).num_new == 1
    (message,) = access.conversations_of(alice).get().messages.all()
    assert (message.content, message.calls[0]["id"]) == ("\ufffd", "c\ufffd")


def test_the_default_model_stands_at_the_conversation_and_at_answers_without_one(alice: User) -> None:
    (chat,) = chats("One")
    chat["default_model_slug"] = "gpt-4o"
    del chat["mapping"]["a2b"]["message"]["metadata"]["model_slug"]
    brought_in(alice, [chat])
    found = access.conversations_of(alice).get()
    assert found.model == "gpt-4o"
    assert found.messages.get(content="Three.").generation.model == "gpt-4o"
    assert found.messages.get(content="Four.").generation.model == "o-model"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Cats purr. \ue200cite\ue202turn0search1\ue201", "Cats purr."),
        ("Cats\ue200cite\ue202turn0search1\ue202turn2news14\ue201 purr.", "Cats purr."),
        ("A \ue200filecite\ue202turn0file1\ue202L10-L12\ue201 b", "A b"),
        ("\ue200navlist\ue202News\ue202turn0news1\ue201\nText", "\nText"),
        ('At \ue200entity\ue202["city","Rome","in Italy"]\ue201.', "At Rome."),
        ("Cut \ue200cite\ue202turn0search1", "Cut "),
        ("\ue201Lone \ue202marks\ue200", "Lone marks"),
        ("As said\u30104:0\u2020source\u3011.", "As said."),
        ("A book \u3010not a source\u3011", "A book \u3010not a source\u3011"),
        ("plain cite turn0search1", "plain cite turn0search1"),
    ],
)
def test_citation_marks_go_with_what_is_between_them(alice: User, said: str, shown: str) -> None:
    (chat,) = chats("One")
    chat["mapping"]["a2b"]["message"]["content"]["parts"] = [f"Three. {said}"]
    brought_in(alice, [chat])
    assert access.conversations_of(alice).get().messages.latest("pk").content in (f"Three. {shown}", "Three." + shown)


def test_a_canvas_is_a_block_of_code_in_the_answer(alice: User) -> None:
    (chat,) = chats("One")
    call = chat["mapping"]["c1"]["message"]
    call["recipient"] = "canmore.create_textdoc"
    made = {"name": "legs.py", "type": "code/python", "content": 'print("```")\n'}
    call["content"] = {"content_type": "code", "text": json.dumps(made)}
    again = json.loads(json.dumps(chat["mapping"]["c1"]))
    updates = [{"pattern": "(a+)+$", "replacement": "b"}, {"pattern": ".*", "replacement": "print(4)"}]
    again["message"] |= {
        "recipient": "canmore.update_textdoc",
        "create_time": 1_700_000_003.2,
        "content": {"content_type": "text", "parts": [json.dumps({"updates": updates})]},
    }
    chat["mapping"]["c2"] = {**again, "id": "c2", "parent": "c1"}
    chat["mapping"]["r1"]["parent"] = "c2"
    summary = brought_in(alice, [chat])
    answer = access.conversations_of(alice).get().messages.get(content__endswith="Four.")
    assert answer.content == '**legs.py**\n\n````python\nprint("```")\n````\n\n```\nprint(4)\n```\n\nFour.'
    assert summary.notes["edits of canvas documents"] == 1


def test_claude(alice: User) -> None:
    summary = brought_in(alice, zipped(**{"conversations.json": exports.claude(), "users.json": [{"uuid": "u"}]}))
    found = access.conversations_of(alice).get()
    assert (summary.source, found.title) == ("Claude", "Legs")
    assert tree(found) == [
        ("user", "How many legs has a cat?", ""),
        ("assistant", "Four.\n\nSure.", "How many legs has a cat?"),
        ("assistant", "It has four.", "How many legs has a cat?"),
        ("user", "", "It has four."),
    ]
    assert [message.content for message in access.path_of(found)] == ["How many legs has a cat?", "It has four.", ""]
    assert found.messages.get(content__startswith="Four").reasoning == "let me think"
    (file,) = found.messages.get(content="").attachments.all()
    assert (file.name, file.text) == ("notes.txt", "pasted words")
    assert dict(+summary.notes) == {"calls of tools": 2, "attached files": 1}
    assert found.created_at.isoformat() == "2025-03-01T10:00:00.123456+00:00"


def test_claude_without_links_between_messages_is_one_path(alice: User) -> None:
    (chat,) = exports.claude()
    for message in chat["chat_messages"]:
        del message["parent_message_uuid"], message["content"]
    del chat["current_leaf_message_uuid"]
    brought_in(alice, [chat])
    found = access.conversations_of(alice).get()
    assert [m.content for m in access.path_of(found)] == [
        "How many legs has a cat?",
        "Four.\n\nSure.\n\nIt has four.",
        "",
    ]


def test_deepseek(alice: User) -> None:
    summary = brought_in(alice, exports.deepseek())
    found = access.conversations_of(alice).get()
    assert (summary.source, found.title) == ("DeepSeek", "Beine")
    assert tree(found) == [
        ("user", "Wie viele Beine?", ""),
        ("assistant", "Vier.", "Wie viele Beine?"),
        ("assistant", "Drei.", "Wie viele Beine?"),
    ]
    answer = found.messages.get(content="Vier.")
    assert (answer.reasoning, answer.generation.model) == ("Ich zähle.", "deepseek-reasoner")
    assert answer.created_at.isoformat() == "2025-04-29T03:59:20.500000+00:00"
    assert dict(+summary.notes) == {"web quotes": 1}


def test_a_list_of_names_too_long_to_read_is_refused_before_it_is_read(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAX_DIRECTORY_BYTES", 10_000)
    with pytest.raises(ImportRefused, match="too many files") as refused:
        brought_in(alice, zipped(**{f"{n}.json": b"[]" for n in range(300)}))
    assert refused.value.http_status == 413


def test_more_values_than_conversations_have_are_refused_before_they_are_made(
    alice: User, site: Callable[..., None]
) -> None:
    site(max_import_bytes=1_000_000)
    for data in (
        b"[" + b"[]," * 40_000 + b"0]",
        b"[" + b"0," * 120_000 + b"0]",
        b'{"a":' * 40_000 + b"0" + b"}" * 40_000,
    ):
        with pytest.raises(ImportRefused, match="more values in it"):
            brought_in(alice, data)
