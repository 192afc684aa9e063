"""How a conversation reads on each page that shows one: headings for screen readers, direction, and one renderer."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.generation import record
from chatsite.chat.models import Conversation
from chatsite.chat.rendering.stream import blocks
from chatsite.sharing import actions as sharing
from tests.web import reviewing
from tests.web.chat_worker import StepWorker

ANSWER = (
    "# Above\n\n**注意：**这里 www.example.com\n\n<details><summary>More</summary>\n\n## Inner\n\nH<sub>2</sub>O\n\n"
    "</details>\n\n- אחת\n- `code`\n\n$\\ce{H2O}$ and $\\nonsense$\n\n###### Below\n"
)


class Headings(HTMLParser):
    """The headings of a page, in order, with their words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._words: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag[0] == "h" and tag[1:].isdigit():
            self._words = []

    def handle_data(self, data: str) -> None:
        if self._words is not None:
            self._words.append(data)

    def handle_endtag(self, tag: str) -> None:
        if self._words is not None and tag[0] == "h" and tag[1:].isdigit():
            self.found.append((tag, "".join(self._words).strip()))
            self._words = None


@pytest.fixture
def talked(alice: User, conversation: Conversation) -> Conversation:
    conversation.title = "עברית"
    reviewing.turn(conversation, "سؤال", ANSWER)
    return conversation


def pages_of(alice: User, sam: User, talked: Conversation) -> dict[str, str]:
    """The same conversation on each page that shows it."""
    own = reviewing.signed_in(alice)
    link = sharing.share(alice, talked.pk, scope="anyone")
    opened = reviewing.signed_in(sam).post(f"/review/{talked.pk}/", {"reason": reviewing.REASON})
    return {
        "chat": own.get(f"/chat/{talked.pk}/").content.decode(),
        "shared": Client().get(f"/s/{link.token}/").content.decode(),
        "exported": own.get(f"/chat/{talked.pk}/export/html/").content.decode(),
        "reviewed": opened.content.decode(),
    }


def said(page: str) -> list[str]:
    return [words for tag, words in Headings(page).found if tag == "h2" and words.endswith(" said")]


def test_each_message_has_a_heading_and_those_of_an_answer_are_below_it(
    alice: User, sam: User, talked: Conversation
) -> None:
    for name, page in pages_of(alice, sam, talked).items():
        found = Headings(page).found
        levels = [tag for tag, _words in found]
        place = found.index(("h3", "Above"))
        assert [level for level in levels[:place] if level == "h1"] == ["h1"], name
        assert levels[place - 2 : place] == ["h2", "h2"], (name, found)
        assert found[place:][:3] == [("h3", "Above"), ("h4", "Inner"), ("h6", "Below")], name


def test_the_headings_of_messages_say_who_said_them(alice: User, sam: User, talked: Conversation) -> None:
    page = pages_of(alice, sam, talked)["chat"]
    assert said(page) == ["You said", "m said"]
    assert page.count('<h2 class="sr">') == 2


def test_an_answer_is_the_same_on_every_page(alice: User, sam: User, talked: Conversation) -> None:
    shown = "".join(blocks(ANSWER))
    for name, page in pages_of(alice, sam, talked).items():
        assert shown in page, name


def test_titles_and_typed_text_find_their_own_direction(alice: User, sam: User, talked: Conversation) -> None:
    pages = pages_of(alice, sam, talked)
    for name, page in pages.items():
        assert 'typed" dir="auto">سؤال</div>' in page, name
        assert ' dir="auto">עברית</h1>' in page, name
    assert '<textarea id="text" name="text" dir="auto"' in pages["chat"]
    assert 'aria-current="page" dir="auto">עברית</a>' in pages["chat"]


def test_a_message_being_written_has_its_heading_too(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    send.send_message(alice, conversation, "Why?")
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    assert len(said(page)) == 2
    attempt = worker.claim().start()
    attempt.write("# Because")
    attempt.finish()
    record.record(attempt.id)
    page = owner.get(f"/chat/{conversation.pk}/").content.decode()
    found = Headings(page).found
    assert found[found.index(("h3", "Because")) - 1][1].endswith(" said")
