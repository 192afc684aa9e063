"""What is typed into the search costs at most a moment, whatever it is, and so does marking what was found.

The database has a limit of time of its own (`search.MAX_STATEMENT_MS`); here it is what it is asked, and this process.
"""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import pytest
from django.db import connection

from chatsite.accounts.models import User
from chatsite.chat.models import SearchEntry
from chatsite.chat.queries import search
from chatsite.chat.queries.snippet import Marker
from tests.cost.meter import assert_bounded, cpu_seconds, filled
from tests.web.conftest import alice  # noqa: F401  (a fixture)
from tests.web.test_search import say

TYPED = {
    "quotes": '"',
    "quoted": '"a b" ',
    "minus": "-",
    "excluded": "-a ",
    "operators": "a & b | !c <-> (d:*) ",
    "brackets": "((((",
    "signs": "a+#._",
    "signs alone": "+",
    "dots": "a.",
    "han": "漢",
    "ligatures": "ﷺ",
    "accents": "e\u0301\u0301",
    "emoji": "\U0001f469\u200d\U0001f4bb",
    "quotes of Postgres": "'\\",
    "spaces": " a",
}


def test_no_query_takes_long(alice: User) -> None:
    say(alice, "ab x needle a.b c++ 漢字 \U0001f469", *(filled(pattern, 3_000) for pattern in TYPED.values()))
    for name, pattern in TYPED.items():
        for size in (300, 100_000):
            typed = filled(pattern, size)
            seconds = cpu_seconds(lambda typed=typed: search.find(alice, typed))  # type: ignore[misc]
            assert seconds < 0.5, (name, size, seconds)
        terms = search.parse(filled(pattern, 100_000))
        assert sum(len(term.words) for term in terms) <= search.MAX_WORDS
        assert sum(len(term.forms) for term in terms) <= search.MAX_FORMS


@pytest.mark.parametrize("pattern", TYPED.values(), ids=TYPED)
def test_marking_what_was_found_is_linear(pattern: str) -> None:
    typed = filled(pattern, 60)
    marker = Marker([(("a",) * 12, True, ""), (tuple("abcdefgh"), False, ""), (("a",), True, typed)])
    assert_bounded(lambda size: filled(pattern, size), marker.around, ms_per_kb=20.0)
    assert_bounded(lambda size: filled("a ", size), marker.whole, ms_per_kb=20.0)


@pytest.mark.parametrize("pattern", TYPED.values(), ids=TYPED)
def test_indexing_a_text_takes_at_most_a_moment_of_the_database(pattern: str, db: None) -> None:
    """A trigger does it in the transaction that stores a message."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 3000")
        cursor.execute("SELECT chat_search_vector('maaaaaaaaaa', %s)", [filled(pattern, 100_000)])
        assert len(cursor.fetchone()[0]) < 3_000_000
    assert SearchEntry.objects.count() == 0
