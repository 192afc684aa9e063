"""Tools in a real browser: the model is scripted, everything else is real, the sandbox of the code included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from inference.messages.generation import FinishReason
from tests.browser.steps import claimed, send, settled, until
from tests.web.chat_worker import MODEL, StepWorker

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


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
