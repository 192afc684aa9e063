"""Search in one's own messages and titles: what was typed, as a query of Postgres, and a page of what it finds.

    two words       messages with both, in any order; the last may be the beginning of a word
    "two words"     these words in a row
    -word           without it
    C++ .NET a_b ✅  as they are written: signs that touch a word count, in forms beside the words

Newest first. Words are looked for bucket by bucket (see `SearchEntry`), the newest first, twice as many at each step:
the commonest word costs a look at a thousand messages, the rarest a few of the index alone. A search that has found
too little after a moment says how far it came, and goes on from there when asked. Never crosses owners, whoever asks:
by the words of the index, by its owner column, and by `access`. Called by `search`.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg.errors
from django.db import OperationalError, connection, transaction
from django.utils.safestring import SafeString

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation, Message
from chatsite.chat.queries import access
from chatsite.chat.queries.snippet import Marker
from chatsite.chat.text import clean_typed

PAGE_HITS = 20
PAGE_TITLES = 6
MAX_QUERY_CHARS = 300
MAX_WORDS = 12
MAX_FORMS = 24
MAX_STEP = 64  # buckets asked for at once
LONG_STEP_SECONDS = 0.02  # the step after one that took so long is no bigger: a phrase of common words is dear
SECONDS = 0.08  # after so long no further step is begun
MAX_STATEMENT_MS = 2_000
_TOP = UUID(int=2**128 - 1)

_TERM = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
_MARKED = "SELECT coalesce(max(bucket), 0) FROM chat_searchentry WHERE owner_id = %s"
_FOLD = (
    "SELECT chat_search_fold(said), ARRAY(SELECT chat_search_hex(form) FROM unnest(chat_search_forms(said)) form), "
    "said ~ '[\u2190-\u2bff\U0001f000-\U0001faff]' "
    "FROM unnest(%s::text[]) WITH ORDINALITY AS typed (said, place) ORDER BY place"
)
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
# Its index is the only way that is quick for every word, and the planner cannot know how dear the vectors are to read.
_SETTINGS = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = on; SET LOCAL jit = off; "
    f"SET LOCAL statement_timeout = {MAX_STATEMENT_MS}"
)
_MESSAGES = """
WITH hit AS MATERIALIZED (
    SELECT owner_id, message_id, bucket FROM chat_searchentry WHERE vector @@ to_tsquery('simple', %s)
)
SELECT bucket, message_id FROM hit
WHERE owner_id = %s AND message_id IS NOT NULL AND (bucket, message_id) < (%s, %s)
ORDER BY bucket DESC, message_id DESC LIMIT %s
"""
_TITLES = """
WITH hit AS MATERIALIZED (
    SELECT owner_id, message_id, conversation_id FROM chat_searchentry WHERE vector @@ to_tsquery('simple', %s)
)
SELECT c.id FROM hit JOIN chat_conversation c ON c.id = hit.conversation_id
WHERE hit.owner_id = %s AND hit.message_id IS NULL ORDER BY c.updated_at DESC LIMIT %s
"""


@dataclass(frozen=True)
class Term:
    """Words that follow one another, as they are compared, and the forms of their signs, in hexadecimal.

    `written` is what was typed, where signs of it count."""

    words: tuple[str, ...]
    is_excluded: bool = False
    is_beginning: bool = False  # the last of them may go on
    forms: tuple[str, ...] = ()
    written: str = ""

    def to_tsquery(self, key: str) -> str:
        words = [f"'{key}{word}'" for word in self.words]
        forms = [f"'{_form_key(key)}{form}'" for form in self.forms]
        if self.is_beginning:
            words[-1:] = [f"{word}:*" for word in words[-1:]]
            forms = [f"{form}:*" for form in forms]
        phrase = " & ".join([*([" <-> ".join(words)] if words else []), *forms])
        return f"!({phrase})" if self.is_excluded else f"({phrase})"


@dataclass(frozen=True)
class Hit:
    """A message, or with `message` None a conversation by its title. Both texts are escaped, with <mark> in them."""

    conversation: Conversation
    message: Message | None
    title: SafeString
    snippet: SafeString


@dataclass(frozen=True)
class Results:
    """`next` is where the following page begins; empty when there is no more. `is_cut`: the search has not come to an
    end, so that even a page with nothing on it may be followed by another."""

    hits: list[Hit] = field(default_factory=list)
    next: str = ""
    is_cut: bool = False
    has_words: bool = False


@dataclass(frozen=True)
class _Place:
    """A message in the order of results: those of newer buckets come first, in a bucket the newer."""

    bucket: int
    message_id: UUID = _TOP

    def __str__(self) -> str:
        return f"{self.bucket}~{self.message_id}"

    @classmethod
    def parse(cls, text: str) -> _Place | None:
        bucket, _, message_id = text.partition("~")
        try:
            return cls(min(int(bucket), 2**31 - 1), UUID(message_id)) if bucket.isdecimal() else None
        except ValueError:
            return None


def find(user: User, typed: str, after: str = "") -> Results:
    """A page of what the user's own messages and titles have of `typed`, from behind `after` (a page's `next`)."""
    terms = parse(typed)
    if all(term.is_excluded for term in terms):
        return Results()
    search = _Search(user, terms)
    place = _Place.parse(after)
    titles: list[UUID] = []
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(_SETTINGS)
            if place is None:
                titles = search.titles()
                place = search.newest()
            search.go_back(place)
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
            raise
        search.is_cut = bool(search.found)  # too dear a query; what was found stands
    marker = Marker([(term.words, term.is_beginning, term.written) for term in terms if not term.is_excluded])
    hits = [*_title_hits(user, titles, marker), *_message_hits(user, search.page, marker)]
    return Results(hits, search.next, is_cut=search.is_cut, has_words=True)


def parse(typed: str) -> list[Term]:
    """What was typed, as terms; what is beyond the limits of a query is left out. Where all of it would be left out of
    the results, a `-` is a sign like another. Signs alone count where there is nothing else."""
    typed = clean_typed(typed)[:MAX_QUERY_CHARS]
    found = [(bool(minus), phrase or word, bool(word)) for minus, phrase, word in _TERM.findall(typed)][:MAX_WORDS]
    if all(is_excluded for is_excluded, _, _ in found):
        found = [
            (False, f"-{text}" if is_excluded and is_word else text, is_word) for is_excluded, text, is_word in found
        ]
    with connection.cursor() as cursor:
        cursor.execute(_FOLD, [[text for _, text, _ in found]])
        folded = [(row[0].split(), row[1], row[2]) for row in cursor.fetchall()]
    terms: list[Term] = []
    room, room_of_forms = MAX_WORDS, MAX_FORMS
    has_words = any(words or has_emoji for words, _forms, has_emoji in folded)
    for index, ((is_excluded, text, is_word), (words, forms, has_emoji)) in enumerate(zip(found, folded, strict=True)):
        is_taken = words or (forms and (has_emoji or not has_words))
        if not is_taken or len(words) > room or len(forms) > room_of_forms:
            continue
        room -= len(words)
        room_of_forms -= len(forms)
        is_last = index == len(found) - 1 and is_word and not is_excluded
        terms.append(Term(tuple(words), is_excluded, is_last, tuple(forms), " ".join(text.split()) if forms else ""))
    return terms


def _form_key(key: str) -> str:
    """As a key, for forms."""
    return {"m": "s", "t": "u"}[key[0]] + key[1:]


def key_of(owner_id: UUID, kind: str, bucket: int) -> str:
    """What stands before each word of an entry: as `chat_search_key` in the database. `kind` is m or t."""
    owner = hashlib.md5(str(owner_id).encode(), usedforsecurity=False).hexdigest()[:6]
    return kind + f"{owner}{bucket:04x}".translate(_LETTERS)


class _Search:
    def __init__(self, user: User, terms: list[Term]) -> None:
        self.found: list[_Place] = []  # one more than a page, when there is more
        self.next = ""
        self.is_cut = False
        self._user = user
        self._terms = terms

    @property
    def page(self) -> list[UUID]:
        return [place.message_id for place in self.found[:PAGE_HITS]]

    def newest(self) -> _Place:
        with connection.cursor() as cursor:
            cursor.execute(_MARKED, [self._user.pk])
            return _Place(cursor.fetchone()[0])

    def titles(self) -> list[UUID]:
        return [pk for (pk,) in self._rows(_TITLES, "t", [0], [self._user.pk, PAGE_TITLES])]

    def go_back(self, place: _Place) -> None:
        """Fill a page from behind `place` on, step by step, as long as there is time."""
        ends_at = time.monotonic() + SECONDS
        step, high = 1, place.bucket
        while high >= 0:
            began_at = time.monotonic()
            low = max(0, high - step + 1)
            more = [self._user.pk, place.bucket, place.message_id, PAGE_HITS + 1 - len(self.found)]
            rows = self._rows(_MESSAGES, "m", list(range(high, low - 1, -1)), more)
            self.found += [_Place(bucket, pk) for bucket, pk in rows]
            if len(self.found) > PAGE_HITS:
                self.next = str(self.found[PAGE_HITS - 1])
                return
            high = low - 1
            if high >= 0 and time.monotonic() >= ends_at:
                self.next, self.is_cut = str(_Place(high)), True
                return
            if time.monotonic() - began_at < LONG_STEP_SECONDS:
                step = min(2 * step, MAX_STEP)

    def _rows(self, query: str, kind: str, buckets: list[int], more: list[Any]) -> list[tuple[Any, ...]]:
        keys = [key_of(self._user.pk, kind, bucket) for bucket in buckets]
        wanted = " | ".join(f"({' & '.join(term.to_tsquery(key) for term in self._terms)})" for key in keys)
        with connection.cursor() as cursor:
            cursor.execute(query, [wanted, *more])
            return list(cursor.fetchall())


def _title_hits(user: User, pks: list[UUID], marker: Marker) -> list[Hit]:
    found = access.conversations_of(user).in_bulk(pks)
    return [Hit(found[pk], None, marker.whole(found[pk].title), SafeString("")) for pk in pks if pk in found]


def _message_hits(user: User, pks: list[UUID], marker: Marker) -> list[Hit]:
    rows = Message.objects.filter(conversation__owner=user).select_related("conversation").defer("reasoning")
    found = rows.in_bulk(pks)
    return [
        Hit(
            found[pk].conversation,
            found[pk],
            marker.whole(found[pk].conversation.title),
            marker.around(found[pk].content),
        )
        for pk in pks
        if pk in found
    ]
