"""Reports: an owner shows a bad answer to reviewers, who say what they made of it; the owner sees that, and can undo.

The people of `reviewing`: alice owns, rita reviews, sam is staff without the permission.
"""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.actions import feedback
from chatsite.chat.models import Conversation, Feedback, Message
from chatsite.review import reports
from chatsite.review.models import NOTE_CHARS, ReportOutcome
from tests.web.reviewing import SECRET, people, report, set_policy, signed_in, turn

HX = {"HX-Request": "true"}
BOX = "Show this conversation to reviewers"
CAN_READ = {
    "reported": "Reviewers of this site can then read this answer",
    "reason": "They can open any conversation here",
    "off": "Nobody can read it now",
}

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> dict[str, User]:
    return people()


@pytest.fixture
def answer(cast: dict[str, User]) -> Message:
    conversation = Conversation.objects.create(owner=cast["alice"], title=f"About {SECRET}")
    return turn(conversation, f"{SECRET}?", f"{SECRET}!")


def give(cast: dict[str, User], answer: Message, **typed: str) -> Any:
    """What the sheet of the answer posts."""
    return signed_in(cast["alice"]).post(f"/chat/messages/{answer.pk}/feedback/", typed, headers=HX)


def page_of(cast: dict[str, User], answer: Message) -> str:
    return html.unescape(signed_in(cast["alice"]).get(f"/chat/{answer.conversation_id}/").content.decode())


@pytest.mark.parametrize("policy", ["off", "reported", "reason"])
def test_the_sheet_offers_a_report_of_a_bad_answer_and_says_who_can_read_what(
    cast: dict[str, User], answer: Message, policy: str
) -> None:
    set_policy(policy)
    assert BOX not in page_of(cast, answer)
    assert BOX not in give(cast, answer, rating="1").content.decode()
    sheet = give(cast, answer, rating="-1").content.decode()
    assert (BOX in sheet) is (policy != "off")
    assert [name for name, words in CAN_READ.items() if words in sheet] == ([] if policy == "off" else [policy])
    assert (BOX in page_of(cast, answer)) is (policy != "off")


def test_a_report_is_kept_with_the_opinion_and_goes_with_it(cast: dict[str, User], answer: Message) -> None:
    set_policy("reported")
    sheet = give(cast, answer, rating="-1", comment="no", is_reported="on").content.decode()
    assert 'name="is_reported" value="on" checked' in sheet
    assert "Shown to reviewers" in sheet
    row = Feedback.objects.get()
    assert (row.is_reported, row.comment) == (True, "no")
    give(cast, answer, rating="-1", comment="still no", is_reported="on")
    assert Feedback.objects.get().pk == row.pk
    sheet = give(cast, answer, rating="").content.decode()
    assert not Feedback.objects.exists()
    assert "Shown to reviewers" not in sheet


def test_while_the_policy_is_off_nothing_new_is_reported_and_what_was_can_be_undone(
    cast: dict[str, User], answer: Message
) -> None:
    set_policy("off")
    give(cast, answer, rating="-1", comment="before")
    refused = give(cast, answer, rating="-1", comment="after", is_reported="on")
    assert refused.status_code == 409
    assert "Reviewing is switched off on this site" in refused.content.decode()
    assert Feedback.objects.get().comment == "before"

    set_policy("reported")
    give(cast, answer, rating="-1", is_reported="on")
    set_policy("off")
    sheet = give(cast, answer, rating="-1", comment="kept", is_reported="on").content.decode()
    assert Feedback.objects.get().is_reported
    assert BOX in sheet
    assert CAN_READ["off"] in sheet
    give(cast, answer, rating="-1", comment="kept")
    assert not Feedback.objects.get().is_reported


def test_only_a_bad_answer_is_reported(cast: dict[str, User], answer: Message) -> None:
    refused = give(cast, answer, rating="1", is_reported="on")
    assert refused.status_code == 400
    assert "Only an answer that you find bad" in refused.content.decode()
    assert not Feedback.objects.exists()
    with pytest.raises(errors.NotReportable):
        feedback.give(cast["alice"], answer, 1, is_reported=True)
    with pytest.raises(IntegrityError), transaction.atomic():
        Feedback.objects.create(message=answer, rating=1, is_reported=True)


def test_reviewers_find_reports_newest_first_and_without_a_word_of_the_owner(
    cast: dict[str, User], answer: Message
) -> None:
    first = report(answer, f"Comment {SECRET}")
    second = report(turn(answer.conversation, "and?", "so", after=answer))
    client = signed_in(cast["rita"])

    def listed(state: str = "") -> list[int]:
        page = client.get("/review/reports/", {"state": state}).content.decode()
        assert SECRET not in page
        return [int(pk) for pk in re.findall(r"/review/reports/(\d+)/", page)]

    assert listed() == [second.pk, first.pk]
    assert listed("handled") == []
    assert listed("nonsense") == listed()
    assert "(2 open)" in client.get("/review/").content.decode()
    page = client.get(f"/review/reports/{first.pk}/")
    assert page.status_code == 200
    assert SECRET not in page.content.decode()
    handled = client.post(f"/review/reports/{second.pk}/", {"note": ""}, follow=True)
    assert "The report is handled" in handled.content.decode()
    assert (listed(), listed("handled")) == ([first.pk], [second.pk])


def test_the_owner_sees_the_outcome_under_the_answer_and_among_their_reports(
    cast: dict[str, User], answer: Message
) -> None:
    row = report(answer)
    mine = signed_in(cast["alice"]).get("/review/mine/").content.decode()
    assert "Not handled yet." in mine
    assert f"#m-{answer.pk}" in mine
    signed_in(cast["rita"]).post(
        f"/review/reports/{row.pk}/", {"note": " Model <b>replaced</b>.\r\nThank you.\x00"[:-1]}
    )
    outcome = ReportOutcome.objects.get()
    assert (outcome.feedback, outcome.handled_by, outcome.note) == (
        row,
        cast["rita"],
        "Model <b>replaced</b>.\nThank you.",
    )
    for address in ("/review/mine/", f"/chat/{answer.conversation_id}/"):
        page = signed_in(cast["alice"]).get(address).content.decode()
        assert re.search(r"Reviewed\b.*: Model &lt;b&gt;replaced&lt;/b&gt;\.", page), address
    assert "Reviewed by rita" in signed_in(cast["alice"]).get("/review/mine/").content.decode()
    assert "replaced" not in signed_in(cast["bob"]).get("/review/mine/").content.decode()
    cast["rita"].delete()
    assert "Reviewed by an account that is gone" in signed_in(cast["alice"]).get("/review/mine/").content.decode()


def test_a_report_is_handled_once_and_can_be_opened_again(cast: dict[str, User], answer: Message) -> None:
    row = report(answer)
    address = f"/review/reports/{row.pk}/"
    assert signed_in(cast["rita"]).post(address, {"note": "first"}).status_code == 302
    second = signed_in(cast["root"]).post(address, {"note": "second"})
    assert second.status_code == 409
    text = html.unescape(second.content.decode())
    assert "Handled already, by rita" in text
    assert "Your note was: second" in text
    assert ReportOutcome.objects.get().note == "first"
    opened = signed_in(cast["root"]).post(address, {"open_again": "1"}, follow=True)
    assert "The report is open again." in opened.content.decode()
    assert not ReportOutcome.objects.exists()
    signed_in(cast["root"]).post(address, {"note": "second"})
    assert ReportOutcome.objects.get().note == "second"


@pytest.mark.parametrize("note", ["x" * (NOTE_CHARS + 1), "a\x00b"])
def test_a_note_that_cannot_be_kept_is_refused_and_stays_in_the_form(
    cast: dict[str, User], answer: Message, note: str
) -> None:
    row = report(answer)
    refused = signed_in(cast["rita"]).post(f"/review/reports/{row.pk}/", {"note": note})
    assert refused.status_code == 400
    assert note in refused.content.decode()
    assert "errorlist" in refused.content.decode()
    assert not ReportOutcome.objects.exists()


def test_an_outcome_goes_with_its_report_and_stays_with_a_changed_comment(
    cast: dict[str, User], answer: Message
) -> None:
    set_policy("reported")
    give(cast, answer, rating="-1", is_reported="on")
    reports.handle(cast["rita"], Feedback.objects.get().pk, "done")
    give(cast, answer, rating="-1", is_reported="on", comment="more")
    assert ReportOutcome.objects.get().feedback.comment == "more"
    give(cast, answer, rating="-1", comment="more")
    assert not ReportOutcome.objects.exists()
    give(cast, answer, rating="-1", comment="more", is_reported="on")  # a new report, which nobody has handled
    assert not ReportOutcome.objects.exists()
    reports.handle(cast["rita"], Feedback.objects.get().pk, "done")
    give(cast, answer, rating="")
    assert not ReportOutcome.objects.exists()


def test_only_reported_answers_have_a_report(cast: dict[str, User], answer: Message) -> None:
    plain = Feedback.objects.create(message=answer, rating=-1)
    client = signed_in(cast["rita"])
    for pk in (plain.pk, plain.pk + 1, 9_999_999_999_999_999_999_999):
        assert client.get(f"/review/reports/{pk}/").status_code == 404
        assert client.post(f"/review/reports/{pk}/", {"note": "x"}).status_code == 404
        assert client.post(f"/review/reports/{pk}/", {"open_again": "1"}).status_code == 404
    assert not ReportOutcome.objects.exists()


def test_a_transcript_marks_reported_answers_and_lets_them_be_handled(cast: dict[str, User], answer: Message) -> None:
    rows = [report(answer, "First comment"), report(turn(answer.conversation, "and?", "so", after=answer))]
    reports.handle(cast["root"], rows[1].pk, "Noted.")
    page = signed_in(cast["rita"]).post(f"/review/{answer.conversation_id}/", {"reason": "It was reported"})
    text = page.content.decode()
    assert "First comment" in text
    assert f'action="/review/reports/{rows[0].pk}/"' in text
    assert "Reported, and handled" in text
    assert "Noted." in text
    assert len(re.findall(r'id="report-\d+-note"', text)) == 1
