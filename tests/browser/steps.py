"""What a person does on the chat page, for browser tests to say in a word."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable

import psycopg
from playwright.sync_api import Page

from inference.coordination.waiting_room import Claim
from tests.fleet import Fleet, wait_for
from tests.web.chat_worker import MODEL, Attempt, StepWorker

ANSWER_SECONDS = 120
PASSWORD = "correct horse 7"
_numbers = itertools.count()


def sign_up(page: Page) -> str:
    """The name of the new person."""
    name = f"u{next(_numbers)}{uuid.uuid4().hex[:8]}"
    page.goto("/accounts/signup/")
    page.fill("[name=username]", name)
    page.fill("[name=password1]", PASSWORD)
    page.fill("[name=password2]", PASSWORD)
    page.click("main button[type=submit]")
    page.wait_for_selector("#composer")
    return name


def join(page: Page) -> str:
    """The same without looking at the form, which is quicker; the page is at the start of a chat."""
    name = f"u{next(_numbers)}{uuid.uuid4().hex[:8]}"
    form = page.request.get("/accounts/signup/")
    token = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "csrftoken")
    typed = {"csrfmiddlewaretoken": token, "username": name, "password1": PASSWORD, "password2": PASSWORD}
    answer = page.request.post("/accounts/signup/", form=typed, headers={"Referer": form.url}, max_redirects=0)
    assert answer.status == 302, answer.status
    page.goto("/")
    return name


def name_of(page: Page) -> str:
    """The name of who is signed in, as the sidebar shows it."""
    return (page.locator(".me .name").text_content() or "").strip()


def sign_in(page: Page, name: str) -> None:
    page.fill("[name=login]", name)
    page.fill("[name=password]", PASSWORD)
    page.click("main button[type=submit]")


def until(page: Page, condition: Callable[[], bool], seconds: float = 15) -> None:
    """Wait in the page's own time; the content policy forbids Playwright's evaluated conditions."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        page.wait_for_timeout(50)


def send(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def short(page: Page, tokens: int = 4) -> None:
    """Keep the answers of a new chat short."""
    page.click("#tune summary")
    page.fill("#tune [name=max_tokens]", str(tokens))
    page.keyboard.press("Escape")


def use_scripted(page: Page) -> None:
    """Have the scripted model answer in a new chat."""
    page.click("#tune summary")
    page.select_option("#tune [name=model]", MODEL)
    page.keyboard.press("Escape")


def claimed(worker: StepWorker) -> Attempt:
    """The answer that waits for the scripted model, begun."""

    def claim() -> Attempt | None:
        found = worker.room.claim(MODEL, worker.name)
        return Attempt(worker, found) if isinstance(found, Claim) else None

    found: Attempt = wait_for(claim, "an answer waits for the scripted model")
    return found.start()


def settled(page: Page, count: int = 1) -> None:
    def is_over() -> bool:
        return page.locator("article.bot:not([data-generation])").count() >= count

    until(page, is_over, ANSWER_SECONDS)


def stored_answers(site: Fleet, conversation_url: str) -> list[str]:
    """What Postgres holds of a conversation's answers, oldest first."""
    conversation = conversation_url.rstrip("/").rsplit("/", 1)[1]
    query = "SELECT content FROM chat_message WHERE conversation_id = %s AND role = 'assistant' ORDER BY id"
    with psycopg.connect(site.env["DATABASE_URL"]) as connection:
        return [content for (content,) in connection.execute(query, [conversation])]
