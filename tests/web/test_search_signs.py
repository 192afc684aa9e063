"""What has signs in it is found as it is written, marked as it is written, and by nobody but its owner."""

from __future__ import annotations

import importlib

import pytest
from django.apps import apps
from django.db import connection

from chatsite.accounts.models import User
from chatsite.chat.models import SearchEntry
from chatsite.chat.queries import search
from chatsite.chat.queries.snippet import Marker
from tests.web.test_search import say, texts

SAID = {
    "c": "Plain C, and a cat: C is c.",
    "c++": "We like (C++), and C++11.",
    "han": "我使用C++写程序",
    "c#": "C# and F# run there",
    ".net": "a .NET thing",
    "asp": "ASP.NET pages",
    "net": "a net to fish",
    "node": "node.js it is",
    "node js": "a node, js too",
    "a_b": "the name a_b is used",
    "a b": "a b are used",
    "-x": "run it with -x or --verbose",
    "x": "x marks it",
    "ok": "all is done \N{WHITE HEAVY CHECK MARK} now",
    "dev": "a \N{WOMAN}\u200d\N{PERSONAL COMPUTER} works",
    "arrow": "it goes f -> g :)",
    "money": "it costs 5 € or $100",
    "init": "write __init__ there",
}

FOUND = {
    "C++": ["c++", "han"],
    "c++11": ["c++"],
    '"C++"': ["c++", "han"],
    "Ｃ＋＋": ["c++", "han"],
    "C#": ["c#"],
    "F#": ["c#"],
    "(F#)": ["c#"],
    ".NET": [".net", "asp"],
    ".ne": [".net", "asp"],
    "ASP.NET": ["asp"],
    "node.js": ["node"],
    "node.j": ["node"],
    "node js": ["node", "node js"],
    "a_b": ["a_b"],
    "-x": ["-x"],
    '"-x"': ["-x"],
    "--verbose": ["-x"],
    "run -x": ["c#"],
    "like -C++": [],
    "C -C++": ["c", "c#"],
    "\N{WHITE HEAVY CHECK MARK}": ["ok"],
    "done \N{WHITE HEAVY CHECK MARK}": ["ok"],
    "\N{WOMAN}\u200d\N{PERSONAL COMPUTER}": ["dev"],
    "\N{PERSONAL COMPUTER}": ["dev"],
    "->": ["arrow"],
    ":)": ["arrow"],
    "f & g": ["arrow"],
    "€": ["money"],
    "$100": ["money"],
    "__init__": ["init"],
    "“C++”": ["c++", "han"],
    "C+++": [],
    "+": ["c++"],
    "\N{PILE OF POO}": [],
}


def test_what_has_signs_is_found_as_it_is_written(alice: User) -> None:
    say(alice, *SAID.values())
    names = {text: name for name, text in SAID.items()}
    found = {typed: sorted(names[text] for text in texts(alice, typed)) for typed in FOUND}
    assert {typed: names for typed, names in found.items() if names != FOUND[typed]} == {}


def test_signs_are_found_in_titles_and_never_in_those_of_others(alice: User, bob: User) -> None:
    say(alice, "nothing of it", title="My C++ notes")
    say(bob, "his C++ \N{WHITE HEAVY CHECK MARK}", title="F#")
    assert texts(alice, "C++") == ["# My <mark>C++</mark> notes"]
    assert texts(bob, "C++") == ["his C++ \N{WHITE HEAVY CHECK MARK}"]
    assert texts(bob, "F#") == ["# <mark>F#</mark>"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT chat_search_key(%s, 'm', 0)", [bob.pk])
        key = "s" + cursor.fetchone()[0][1:]
    for typed in ("\N{WHITE HEAVY CHECK MARK}", "F#", f"{key}632b2b"):
        assert texts(alice, typed) == []


def test_entries_from_before_forms_are_written_anew_by_the_migration(alice: User) -> None:
    said = say(alice, "old C++ text", "plain words", title="C# title")
    plain = "UPDATE chat_searchentry SET vector = to_tsvector('simple', regexp_replace(chat_search_fold(%s), "
    with connection.cursor() as cursor:
        for text, entry in [(m.content, SearchEntry.objects.get(message=m)) for m in said]:
            key = search.key_of(alice.pk, "m", entry.bucket)
            cursor.execute(plain + r"'(\S+)', %s || '\1', 'g')) WHERE id = %s", [text, key, entry.pk])
        key = search.key_of(alice.pk, "t", 0)
        title = plain + r"'(\S+)', %s || '\1', 'g')) WHERE message_id IS NULL"
        cursor.execute(title, ["C# title", key])
    assert (texts(alice, "C++"), texts(alice, "C#")) == ([], [])
    migration = importlib.import_module("chatsite.chat.migrations.0012_search_of_signs")
    with connection.schema_editor(atomic=False) as editor:
        for _ in range(2):  # broken off, it can be run again
            migration.make(apps, editor)
            migration.fill(apps, editor)
    assert texts(alice, "C++") == ["old C++ text"]
    assert texts(alice, "C#") == ["# <mark>C#</mark> title"]
    assert texts(alice, "plain") == ["plain words"]


@pytest.mark.parametrize(
    ("typed", "words", "text", "shown"),
    [
        ("C++", ("c",), "c <C++> C", "c &lt;<mark>C++</mark>&gt; C"),
        ("“C#”", ("c",), "c C#", "c <mark>C#</mark>"),
        (".NET", ("net",), "net ASP.NET", "net ASP<mark>.NET</mark>"),
        ("a_b", ("a", "b"), "a b xa_b a_b", "a b xa_b <mark>a_b</mark>"),
        ("\N{WHITE HEAVY CHECK MARK}", (), "ok\N{WHITE HEAVY CHECK MARK}", "ok<mark>\N{WHITE HEAVY CHECK MARK}</mark>"),
        (":)", (), "x :) y", "x <mark>:)</mark> y"),
    ],
)
def test_what_was_typed_is_marked_with_its_signs(typed: str, words: tuple[str, ...], text: str, shown: str) -> None:
    assert Marker([(words, False, typed)]).whole(text) == shown


def test_a_text_of_nothing_but_forms_is_not_refused(alice: User) -> None:
    han = "".join(chr(n) for n in range(0x4E00, 0x9FFF)) + "".join(chr(n) for n in range(0x20000, 0x2A000))
    for text in (" ".join(f"{n:x}.{n:x}+" for n in range(2_500)), han + " C++", "a." * 24_000, "+" * 48_000):
        say(alice, text)
    assert SearchEntry.objects.filter(message__isnull=False).count() == 4
    assert texts(alice, "1f.1f+")
