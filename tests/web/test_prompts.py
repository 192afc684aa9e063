"""Prompt templates: their blanks, whose they are, who shares them, and what the menu is given."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.prompts import library
from chatsite.prompts.blanks import MAX_BLANKS, Blank, blanks_of, fill
from chatsite.prompts.models import PromptTemplate
from tests.web.test_pages import signed_in


def keep(user: User, name: str, text: str = "Hello", *, shared: bool = False) -> PromptTemplate:
    return library.save(user, PromptTemplate(name=name, text=text, is_shared=shared))


@pytest.mark.parametrize(
    ("text", "blanks"),
    [
        ("no blanks, {one} {{ }} {{1st}} {{a b}} {{a\n}} {{{", []),
        ("{{a}} and {{ b | two words }} and {{a|later}}", [Blank("a", "later"), Blank("b", "two words")]),
        ("{{größe}} {{x_1}} {{y-2}}", [Blank("größe"), Blank("x_1"), Blank("y-2")]),
        ("a template's own {{#each}} and {% tag %}", []),
    ],
)
def test_blanks_are_names_between_double_braces_and_nothing_else(text: str, blanks: list[Blank]) -> None:
    assert blanks_of(text) == blanks


def test_filling_takes_values_as_they_are_and_defaults_where_there_is_none() -> None:
    text = "Write to {{who|Ann}} and {{who}} about {{what}}: \\1 {{who|Bob}}"
    assert fill(text, {"what": "{{who}} \\1 <b>"}) == "Write to Ann and Ann about {{who}} \\1 <b>: \\1 Ann"
    assert fill(text, {"who": "Eve", "what": ""}) == "Write to Eve and Eve about : \\1 Eve"


def test_own_prompts_hide_shared_ones_of_their_name(alice: User, bob: User, sam: User) -> None:
    keep(sam, "mail", "shared", shared=True)
    keep(sam, "private", "sam's own")
    keep(alice, "mail", "mine")
    assert [row.text for row in library.usable(alice)] == ["mine"]
    assert [row.text for row in library.usable(bob)] == ["shared"]
    User.objects.filter(username="sam").update(is_active=False)
    assert library.usable(bob) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("think", "x", "A command has this name"),
        ("taken", "x", "of this name already"),
        ("ok", " \n", "empty"),
        ("ok", "x" * 51, "51 characters; at most 50"),
        ("ok", " ".join(f"{{{{a{n}}}}}" for n in range(MAX_BLANKS + 1)), "at most 20 blanks"),
    ],
)
def test_what_cannot_be_kept_is_refused(alice: User, site: Any, name: str, text: str, said: str) -> None:
    site(max_message_chars=50 if "{{" not in text else 1000)
    keep(alice, "taken")
    with pytest.raises(library.PromptRefused, match=said):
        keep(alice, name, text)
    assert PromptTemplate.objects.count() == 1


def test_only_staff_share_with_everybody(alice: User, sam: User) -> None:
    with pytest.raises(library.PromptRefused):
        keep(alice, "mine", shared=True)
    client = signed_in(alice)
    assert b"is_shared" not in client.get("/prompts/new/").content
    client.post("/prompts/new/", {"name": "mine", "text": "x", "is_shared": "on"})
    assert not PromptTemplate.objects.get().is_shared
    signed_in(sam).post("/prompts/new/", {"name": "ours", "text": "x", "is_shared": "on"})
    assert PromptTemplate.objects.get(name="ours").is_shared


def test_pages_make_change_and_delete(alice: User, site: Any) -> None:
    client = signed_in(alice)
    made = client.post("/prompts/new/", {"name": "mail", "title": "A <b>mail</b>", "text": "To {{who}}"})
    assert (made.status_code, made["Location"]) == (302, "/prompts/")
    row = PromptTemplate.objects.get()
    assert b"A &lt;b&gt;mail&lt;/b&gt;" in client.get("/prompts/").content
    assert b"To {{who}}" in client.get(f"/prompts/{row.pk}/").content
    client.post(f"/prompts/{row.pk}/", {"name": "post", "text": "Dear {{who}}"})
    row.refresh_from_db()
    assert (row.name, row.text) == ("post", "Dear {{who}}")
    for name in ("Bad Name", "", "/x", "new"):
        refused = client.post("/prompts/new/", {"name": name, "text": "kept words"})
        assert refused.status_code == 400
        assert b"kept words" in refused.content
    assert b"Delete /post?" in client.get(f"/prompts/{row.pk}/delete/").content
    client.post(f"/prompts/{row.pk}/delete/")
    assert not PromptTemplate.objects.exists()


def test_use_asks_for_blanks_first_and_then_gives_the_text(alice: User, site: Any) -> None:
    client = signed_in(alice)
    plain = client.get(f"/prompts/{keep(alice, 'plain', 'a <b>').pk}/use/")
    assert (plain["Content-Type"], plain.content) == ("text/plain; charset=utf-8", b"a <b>")
    url = f"/prompts/{keep(alice, 'mail', 'To {{who|Ann}}, {{what}}').pk}/use/"
    asked = client.get(url)
    assert b'name="who"' in asked.content
    assert b"Ann" in asked.content
    filled = client.post(url, {"who": "", "what": "on <i>two</i>\r\nlines"})
    assert filled.content == b"To Ann, on <i>two</i>\nlines"


def test_menu_gets_the_users_own_and_the_shared(alice: User, sam: User, site: Any) -> None:
    keep(sam, "ours", shared=True)
    keep(sam, "secret")
    keep(alice, "mine", '"><script>')
    options = signed_in(alice).get("/prompts/options/").content
    assert b'data-name="ours"' in options
    assert b'data-name="mine"' in options
    assert b"secret" not in options
    assert b"<script>" not in options


def test_strangers_find_nothing_and_use_what_is_shared(alice: User, bob: User, sam: User, site: Any) -> None:
    mine, ours = keep(alice, "mine", "secret"), keep(sam, "ours", "for all", shared=True)
    client = signed_in(bob)
    assert client.get(f"/prompts/{ours.pk}/use/").content == b"for all"
    for pk in (mine.pk, ours.pk):
        for url in (f"/prompts/{pk}/", f"/prompts/{pk}/delete/"):
            assert client.get(url).status_code == 404
            assert client.post(url, {"name": "x", "text": "x"}).status_code == 404
    assert client.get(f"/prompts/{mine.pk}/use/").status_code == 404
    assert b"secret" not in client.get("/prompts/").content
    assert Client().get("/prompts/").status_code == 302
    assert PromptTemplate.objects.count() == 2
