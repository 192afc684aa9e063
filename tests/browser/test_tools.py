"""Tools in a real browser: the model is scripted, everything else is real, the sandbox of the code included."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from playwright.sync_api import Page

from inference import config
from inference.protocol import FinishReason
from inference.waiting_room import Claim
from tests.browser.steps import send, settled, until
from tests.fleet import Fleet, wait_for
from tests.web.chat_worker import MODEL, Attempt, StepWorker

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


@pytest.fixture
def scripted(live_site: Fleet) -> Iterator[StepWorker]:
    """A worker beside the real one, with a model whose every step the test makes."""
    with redis.Redis.from_url(live_site.env["REDIS_URL"]) as connection:
        worker = StepWorker(connection, config.load(live_site.env), "scripted-1")
        worker.announce()
        yield worker
        worker.registry.withdraw(worker.name)


def claimed(worker: StepWorker) -> Attempt:
    def claim() -> Attempt | None:
        found = worker.room.claim(MODEL, worker.name)
        return Attempt(worker, found) if isinstance(found, Claim) else None

    found: Attempt = wait_for(claim, "the request waits for the scripted model")
    return found.start()


def test_calls_are_seen_with_their_results_and_the_answer_goes_on(
    open_page: Callable[..., Page], scripted: StepWorker
) -> None:
    page = open_page()
    page.click("#tune summary")
    page.select_option("#tune [name=model]", MODEL)
    page.select_option("#tune [name=tools]", "on")
    page.keyboard.press("Escape")
    send(page, "What is 6 * 7?")
    first = claimed(scripted)
    assert [tool.name for tool in first.claim.request.tools] == ["python", "time", "search_chats"]
    first.call("python", '{"code": "for i in range(3):\\n    print(i)\\n6 * 7"}')
    first.call("python", '{"code": "1 / 0"}', index=1)
    first.finish(FinishReason.TOOL_CALLS)
    second = claimed(scripted)
    page.wait_for_selector("article.bot .call >> nth=1")
    assert [turn.content for turn in second.claim.request.messages[2:]] == [
        "0\n1\n2\n42",
        "ZeroDivisionError: division by zero",
    ]
    second.write("It is **42**.")
    second.finish()
    settled(page, 2)
    until(page, lambda: page.locator(".call .live").count() == 0)
    assert page.locator(".call.failed").count() == 1
    page.locator(".call summary").first.click()
    texts = page.locator(".call[open] pre").all_inner_texts()
    assert texts == ["for i in range(3):\n    print(i)\n6 * 7", "0\n1\n2\n42"]
    assert page.inner_text("article.bot:last-of-type .body") == "It is 42."
    shown = page.locator("#turns").inner_text()
    page.reload()
    page.locator(".call summary").first.click()
    assert page.locator("#turns").inner_text() == shown
    page.click("article.bot:last-of-type >> text=Retry")
    again = claimed(scripted)
    assert len(again.claim.request.messages) == 4
    again.write("42.")
    again.finish()
    page.wait_for_selector("article.bot >> text=2 / 2")
