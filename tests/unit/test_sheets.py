"""CSV files that are given away: no text of a person's carries out anything in the spreadsheet of who opens one."""

from __future__ import annotations

import csv
import io

import pytest

from chatsite import sheets


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_that_begins_like_a_formula_is_told_as_text(begin: str) -> None:
    text = f"{begin}1+cmd|' /C calc'!A0"
    assert next(csv.reader(io.StringIO(sheets.lines([[text]]), newline=""))) == [f"'{text}"]


def test_numbers_and_other_texts_stay_as_they_are() -> None:
    assert sheets.lines([["day", "tokens"], ["a=b", -3], ['two, "quoted"', 0.5]]) == (
        'day,tokens\r\na=b,-3\r\n"two, ""quoted""",0.5\r\n'
    )
