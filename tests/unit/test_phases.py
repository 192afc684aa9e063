"""The status row of an answer in words: places, times and rates as people read them."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import translation

from chatsite.chat.rendering.status_text import WORDS, phase_of, told


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"phase": "waiting"}, "Waiting"),
        ({"phase": "waiting", "position": 2, "of": 5}, "Place 2 of 5"),
        ({"phase": "waiting", "position": 2, "of": 1}, "Place 2 of 2"),
        ({"phase": "waiting", "position": 1, "of": 1, "eta_seconds": 12.2}, "Place 1 of 1 · about 13 s"),
        ({"phase": "waiting", "position": 1, "of": 1, "eta_seconds": 100}, "Place 1 of 1 · about 2 min"),
        ({"phase": "no_worker", "position": 1, "of": 1}, str(WORDS["no_worker"])),
        ({"phase": "reading", "worker": "w"}, "Reading prompt"),
        ({"phase": "reading", "done": 512, "total": 2_000}, "Reading prompt 25 %"),
        ({"phase": "writing", "tokens": 3}, "Writing"),
        ({"phase": "writing", "tokens": 3, "tokens_per_second": 11.6}, "Writing at 12 tok/s"),
        ({"phase": "thinking", "tokens": 3, "tokens_per_second": 11.6}, "Thinking"),
    ],
)
def test_status_is_said_with_its_numbers(status: dict[str, Any], text: str) -> None:
    with translation.override("en"):
        assert phase_of(status).text == text


def test_page_is_told_words_and_how_far_its_bar_goes() -> None:
    with translation.override("en"):
        assert told({"phase": "reading", "done": 0, "total": 9}) == {
            "phase": "reading",
            "text": "Reading prompt 0 %",
            "percent": 0,
        }
        assert told({"phase": "writing", "tokens": 7, "worker": "w"}) == {"phase": "writing", "text": "Writing"}
