"""The catalogues hold every text that people read, and templates leave none unmarked. Needs no gettext program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog, Message

from chatsite.management.commands import messages
from chatsite.site_config import SiteConfig

ROOT = Path(__file__).resolve().parents[2]
CATALOGUES = sorted((ROOT / "locale").glob("*/LC_MESSAGES/django.po"))
PLACEHOLDER = re.compile(r"%\(\w+\)[-#0 +]*[\d.]*[a-zA-Z]|%[-#0 +]*[\d.]*[sdfg]|{\w+}|%%")

# Pages of staff alone stay English, as their `lang` says; the rest holds no words of ours.
STAFF = (
    "audit/index",
    "ops/",
    "review/admin_frame",
    "review/index",
    "review/reason",
    "review/denied",
    "review/transcript",
    "review/_f",
    "review/_outcome",
    "review/report",
)
NAMES = {"Ctrl", "Shift", "Esc", "Enter", "O", "K", "B", "C", "s", "id", "Markdown", "HTML", "JSON"}
TAG = re.compile(r"{%\s*(\w+)[^%]*?(?:%(?!})[^%]*?)*%}|{{.*?}}|{#.*?#}", re.S)
BLOCK = re.compile(r"{%\s*blocktranslate\b.*?{%\s*endblocktranslate\s*%}|{%\s*comment\b.*?{%\s*endcomment\s*%}", re.S)
SPOKEN = re.compile(r'\b(?:aria-label|title|placeholder|alt|hx-confirm)="([^"]*)"')
ARGUMENT = re.compile(r"""(?:{% firstof [^%]*(?<!_\()|\|default:)["'][A-Z][a-z ]+["']""")
MARKUP = re.compile(r"""<(?:"[^"]*"|[^">])*>""")
WORD = re.compile(r"[^\W\d_]+")


@pytest.fixture(scope="module")
def extracted() -> Catalog:
    return messages.extracted(ROOT)


def texts_of(message: Message) -> tuple[str, ...]:
    return (message.id,) if isinstance(message.id, str) else tuple(message.id)


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parent.parent.name)
def test_every_text_is_translated_with_the_same_placeholders(path: Path, extracted: Catalog) -> None:
    catalogue = messages.catalogue_at(path)
    for wanted in extracted:
        if not wanted.id:
            continue
        found = catalogue.get(wanted.id if isinstance(wanted.id, str) else wanted.id[0], wanted.context)
        assert found is not None, f"{wanted.id!r} is not in the catalogue: `make messages` puts it there"
        assert messages.is_complete(found.string), f"{wanted.id!r} is not translated"
        assert not found.fuzzy, wanted.id
        possible = [set(PLACEHOLDER.findall(text)) for text in texts_of(wanted)]
        for string in [found.string] if isinstance(found.string, str) else found.string:
            assert set(PLACEHOLDER.findall(string)) in possible, (wanted.id, string)
            assert not set('<>"') & set(string) - set("".join(texts_of(wanted))), "templates put texts into attributes"


def test_ideas_that_the_site_has_by_itself_are_translated(extracted: Catalog) -> None:
    assert all(starter in extracted for starter in SiteConfig().starters)


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parent.parent.name)
def test_catalogue_has_nothing_that_nobody_says(path: Path, extracted: Catalog) -> None:
    said = {(message.id, message.context) for message in extracted}
    assert [m.id for m in messages.catalogue_at(path) if m.id and (m.id, m.context) not in said] == []


def test_templates_have_no_words_outside_of_what_is_translated() -> None:
    bare: dict[str, list[str]] = {}
    for path in sorted((ROOT / "templates").rglob("*.html")):
        name = str(path.relative_to(ROOT / "templates"))
        if name.startswith(STAFF):
            continue
        source = TAG.sub(" ", BLOCK.sub(" ", path.read_text(encoding="utf-8")))
        source = re.sub(r"<(script|style)\b.*?</\1>", " ", source, flags=re.S)
        shown = [*SPOKEN.findall(source), *MARKUP.sub("\n", source).splitlines()]
        words = [text.strip() for text in shown if not text.startswith("/") and set(WORD.findall(text)) - NAMES]
        words += ARGUMENT.findall(path.read_text(encoding="utf-8"))
        if words:
            bare[name] = words
    assert bare == {}
