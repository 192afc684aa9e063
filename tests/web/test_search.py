"""Search finds what its words say, in one's own messages and titles alone, quickly, and bears whatever is typed."""

from __future__ import annotations

import importlib
import random
import time
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import organize
from chatsite.chat.models import Conversation, Message, SearchEntry
from chatsite.chat.queries import search
from chatsite.chat.queries.snippet import Marker
from tests.web import search_corpus
from tests.web.test_pages import HX, signed_in


def say(user: User, *texts: str, title: str = "", conversation: Conversation | None = None) -> list[Message]:
    """A path of messages."""
    conversation = conversation or Conversation.objects.create(owner=user, title=title)
    said: list[Message] = []
    for number, text in enumerate(texts):
        role = Message.Role.USER if number % 2 == 0 else Message.Role.ASSISTANT
        parent = said[-1] if said else None
        said.append(Message.objects.create(conversation=conversation, parent=parent, role=role, content=text))
    conversation.leaf = said[-1] if said else None
    conversation.save(update_fields=["leaf"])
    return said


def texts(user: User, typed: str) -> list[str]:
    return [hit.message.content if hit.message else f"# {hit.title}" for hit in search.find(user, typed).hits]


TEXTS = {
    "cafe": "A Café in Zürich: it's naïve",
    "code": "from os.path import join_all; run(/usr/bin/python3)",
    "phrase": "the quick brown fox jumps",
    "other": "the brown quick fox sleeps",
    "japanese": "今日は東京タワーに行きました。",
    "russian": "Привет, МИР",
    "emoji": "done 👩‍💻ok ✅",
}


QUERIES: dict[str, list[str]] = {
    "cafe": ["cafe"],
    "CAFÉ zurich": ["cafe"],
    "ｃａｆｅ": ["cafe"],
    "python3": ["code"],
    "join": ["code"],
    "os.path": ["code"],
    "bro fo": [],  # only the last word may be a beginning
    "brown fo": ["other", "phrase"],
    '"quick brown"': ["phrase"],
    '"quick brown': ["phrase"],
    "brown -jumps": ["other"],
    'fox -"quick brown"': ["other"],
    "-fox": [],
    "東京": ["japanese"],
    "タワー": ["japanese"],
    "京東": [],
    "привет мир": ["russian"],
    "ok": ["emoji"],
    "it's": ["cafe"],
    "": [],
    '"" - -- "-"': [],
    "&|!<->:*()'\\": [],
    "fox:*|brown": [],
    "quick & fox": ["other", "phrase"],
    "the'); DROP TABLE chat_message; --": [],
}


def test_words_phrases_and_exclusions(alice: User) -> None:
    say(alice, *TEXTS.values())
    names = {text: name for name, text in TEXTS.items()}
    assert {typed: sorted(names[text] for text in texts(alice, typed)) for typed in QUERIES} == QUERIES


def test_search_never_crosses_owners_not_even_for_staff(alice: User, bob: User, sam: User) -> None:
    """Nor by guessing what stands before another's words in the index."""
    say(alice, "her secret lighthouse", title="lighthouse plans")
    with connection.cursor() as cursor:
        cursor.execute("SELECT chat_search_key(%s, 'm', 0)", [alice.pk])
        key = cursor.fetchone()[0]
    assert key == search.key_of(alice.pk, "m", 0)
    say(bob, f"{key}lighthouse {key}secret")
    for stranger in (bob, sam):
        for typed in ("lighthouse", f"{key}lighthouse -x", "secret", "l"):
            assert all(hit.conversation.owner_id == stranger.pk for hit in search.find(stranger, typed).hits)
    assert texts(alice, "lighthouse") == ["# <mark>lighthouse</mark> plans", "her secret lighthouse"]
    assert b"secret" not in signed_in(sam).get("/chat/search/?q=lighthouse").content
    SearchEntry.objects.filter(message__conversation__owner=alice).update(owner=bob)  # a second wall behind the first
    assert not any("her secret" in text for text in [*texts(bob, "lighthouse"), *texts(alice, "lighthouse")])


def test_entries_follow_what_is_written_renamed_and_deleted(alice: User) -> None:
    (message,) = say(alice, "first words", title="a title")
    conversation = message.conversation
    Message.objects.filter(pk=message.pk).update(content="other words")
    assert (texts(alice, "first"), texts(alice, "other")) == ([], ["other words"])
    organize.rename(alice, conversation, "renamed")
    assert (texts(alice, "title"), texts(alice, "renamed")) == ([], ["# <mark>renamed</mark>"])
    Message.objects.filter(pk=message.pk).update(content="")
    assert SearchEntry.objects.count() == 1
    say(alice, "more", conversation=conversation)
    organize.delete(alice, conversation)
    assert SearchEntry.objects.count() == 0
    say(alice, "again", title="again")
    alice.delete()
    assert SearchEntry.objects.count() == 0


def test_archived_are_found_and_marked(owner: Client, alice: User) -> None:
    (message,) = say(alice, "a needle", title="hay")
    organize.archive(alice, message.conversation, is_on=True)
    assert "archived" in owner.get("/chat/search/?q=needle", headers=HX).content.decode()


def test_pages_of_results_show_each_once_newest_first(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    say(alice, *(f"needle {n}" for n in range(45)))
    for bucket, (pk,) in enumerate(SearchEntry.objects.filter(message__isnull=False).order_by("pk").values_list("pk")):
        with connection.cursor() as cursor:  # as if many thousands lay between them
            cursor.execute(
                "UPDATE chat_searchentry e SET bucket = %s, vector = chat_search_vector(chat_search_key(e.owner_id, "
                "'m', %s), m.content) FROM chat_message m WHERE m.id = message_id AND e.id = %s",
                [bucket // 4, bucket // 4, pk],
            )
    for seconds in (search.SECONDS, 0.0):  # with time, and with time for one step only
        monkeypatch.setattr(search, "SECONDS", seconds)
        shown: list[str] = []
        after = ""
        while True:
            results = search.find(alice, "needle", after)
            shown += [hit.message.content for hit in results.hits if hit.message]
            assert bool(results.next) or not results.is_cut
            if not results.next:
                break
            after = results.next
        assert shown == [f"needle {n}" for n in reversed(range(45))]
    for nonsense in ("x~y", "-1~", "99999999999~" + "0" * 32, "~", "1~1"):
        assert search.find(alice, "needle", nonsense).has_words


def test_hit_opens_the_branch_that_holds_it(owner: Client, alice: User) -> None:
    first, answer = say(alice, "question", "old needle")
    chat = first.conversation
    other = Message.objects.create(conversation=chat, parent=first, role="assistant", content="new answer")
    Conversation.objects.filter(pk=first.conversation_id).update(leaf=other)
    found = owner.get("/chat/search/?q=needle").content.decode()
    link = f"/chat/messages/{answer.pk}/show/"
    assert f'href="{link}"' in found and "old <mark>needle</mark>" in found
    opened = owner.get(link)
    assert opened["Location"] == f"/chat/{first.conversation_id}/?at={answer.pk}#m-{answer.pk}"
    assert b"old needle" in owner.get(opened["Location"]).content
    Conversation.objects.filter(pk=first.conversation_id).update(leaf=other)
    page = owner.get(link, headers=HX)
    assert b"old needle" in page.content and str(answer.pk) in page["HX-Trigger-After-Settle"]
    assert owner.get(f"/chat/messages/{first.conversation_id}/show/").status_code == 404


def test_hit_far_up_a_long_conversation_is_on_the_page(owner: Client, alice: User) -> None:
    said = say(alice, *(f"needle{n}" for n in range(120)))
    page = owner.get(f"/chat/{said[0].conversation_id}/?at={said[10].pk}").content.decode()
    assert f'id="m-{said[10].pk}"' in page and f'id="m-{said[0].pk}"' not in page and "Earlier messages" in page


def test_message_of_a_stranger_cannot_be_shown(alice: User, bob: User, owner: Client) -> None:
    (message,) = say(bob, "his")
    assert owner.get(f"/chat/messages/{message.pk}/show/").status_code == 404


def test_nothing_typed_is_an_error(owner: Client, alice: User) -> None:
    say(alice, "ab x needle")
    broken = ["\x00", "a\x00b", "\ud83d", "%00%", "\U0010ffff", '"' * 999, "-" * 999]
    for typed in [*broken, "x" * 10_000, "ab " * 5_000, "漢" * 5_000]:
        for headers in ({}, HX):
            encoded = {"q": typed.encode("utf-8", "surrogatepass")}
            assert owner.get("/chat/search/", encoded, headers=headers).status_code == 200
        search.find(alice, typed)


def test_no_message_is_refused_for_the_sake_of_the_index(alice: User, conversation: Conversation, site: Any) -> None:
    """Texts that would make a vector larger than Postgres takes, or have words longer than it knows."""
    site(max_message_chars=200_000)
    chance = random.Random(3)
    han = "".join(chr(n) for n in range(0x4E00, 0x9FFF)) + "".join(chr(n) for n in range(0x20000, 0x2A000))
    for text in (han, "ﷺ" * 60_000, "x" * 200_000, " ".join(f"{n:x}" for n in range(40_000))):
        say(alice, text, conversation=conversation)
    wild = "".join(chr(c) for _ in range(20_000) if not 0xD800 <= (c := chance.randrange(1, 0x110000)) < 0xE000)
    say(alice, wild, conversation=conversation)
    assert SearchEntry.objects.filter(message__isnull=False).count() == 5
    assert texts(alice, "3e") and texts(alice, "丂七")


@pytest.mark.parametrize(
    ("text", "words", "shown"),
    [
        ("<b>the Café</b>", ("cafe",), "&lt;b&gt;the <mark>Café</mark>&lt;/b&gt;"),
        ("a & b", ("b",), "a &amp; <mark>b</mark>"),
        ("concat cat", ("cat",), "concat <mark>cat</mark>"),
        ("os.path", ("os", "path"), "<mark>os.path</mark>"),
        ("snake_case", ("case",), "snake_<mark>case</mark>"),
        ("<script>x</script>", ("script",), "&lt;<mark>script</mark>&gt;x&lt;/<mark>script</mark>&gt;"),
        ("nothing <here>", ("else",), "nothing &lt;here&gt;"),
    ],
)
def test_marks_stand_in_escaped_text(text: str, words: tuple[str, ...], shown: str) -> None:
    marker = Marker([(words, False, "")])
    assert marker.whole(text) == shown
    assert marker.around(text) == shown


def test_snippet_of_a_long_text_is_the_stretch_around_the_word() -> None:
    snippet = Marker([(("needle",), False, "")]).around("hay " * 9_000 + "the Needle " + "hay " * 9_000)
    assert "<mark>Needle</mark>" in snippet and snippet.startswith("…") and snippet.endswith("…") and len(snippet) < 220


def test_what_was_there_before_search_is_indexed_by_the_migration(alice: User) -> None:
    said = say(alice, *(f"needle {n}" for n in range(30)), title="needles")
    SearchEntry.objects.all().delete()
    migration = importlib.import_module("chatsite.chat.migrations.0007_search_of_what_is_there")
    with connection.schema_editor(atomic=False) as editor:
        for _ in range(2):  # broken off, it can be run again
            migration.fill(apps, editor)
    assert SearchEntry.objects.count() == 31
    assert len(search.find(alice, "needle").hits) == 21
    assert texts(alice, '"needle 7"') == [said[7].content]


def test_few_messages_of_several_people_are_found_by_their_owners_alone(transactional_db: None) -> None:
    _check_corpus(search_corpus.make(500, 4), num_queries=20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_search_among_200_000_messages_is_quick_for_every_word(transactional_db: None) -> None:
    seconds = _check_corpus(search_corpus.make(200_000, 12), num_queries=200)
    seconds.sort()
    print(f"p50 {seconds[100] * 1000:.0f} ms, p95 {seconds[190] * 1000:.0f} ms, longest {seconds[-1] * 1000:.0f} ms")
    assert seconds[190] < 0.2


def _check_corpus(corpus: search_corpus.Corpus, num_queries: int) -> list[float]:
    """Ask as the first, the largest, and the second user; seconds of each query."""
    chance = random.Random(11)
    seconds: list[float] = []
    for number in range(num_queries):
        user_number = number % 4 // 3
        user = corpus.users[user_number]
        common, rare = chance.sample(search_corpus.COMMON, 4), chance.sample(corpus.rare, 3)
        typed = [
            common[0],
            " ".join(common[:3]),
            rare[0],
            f"{common[0]} {rare[0]}",
            f'"{common[0]} {common[1]}"',
            f"{common[0]} -{common[1]}",
            rare[0][: chance.randint(1, 4)],
            f"{' '.join(common)} {rare[0]} {rare[1]}",
            f"only{user_number}",
            f'"{common[0]} {rare[0]}"',
        ][number % 10]
        began_at = time.perf_counter()
        results = search.find(user, typed)
        seconds.append(time.perf_counter() - began_at)
        assert all(hit.conversation.owner_id == user.pk for hit in results.hits)
        assert all(f"only{user_number}" in hit.message.content for hit in results.hits if hit.message)
        if number % 10 in (0, 2, 8):
            assert results.hits, typed
        assert search.find(user, f"only{user_number + 1}").hits == []
    return seconds
