"""How people hear that a conversation will not stay, before it goes."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
import redis as redis_py

from chatsite.accounts.models import User
from chatsite.chat.queries import retention
from tests.web.test_pages import HX, signed_in
from tests.web.test_retention import site_says, talk


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (0.5, ""),
        (22, ""),
        (23.5, "This chat will be deleted in 6 days, unless it goes on."),
        (28.5, "This chat will be deleted in 1 day, unless it goes on."),
        (29.5, "This chat will be deleted within a day, unless it goes on."),
        (31, "This chat will be deleted within a day, unless it goes on."),
    ],
)
def test_owner_is_warned_in_the_menu_and_on_the_page(
    alice: User, redis: redis_py.Redis, age: float, words: str
) -> None:
    site_says(retention_days=30)
    old = talk(alice, age)
    assert retention.warning(alice, old) == words
    client = signed_in(alice)
    for path in (f"/chat/{old.pk}/", f"/chat/{old.pk}/menu/"):
        for headers in ({}, HX):
            page = client.get(path, headers=headers).content.decode()
            assert ("This chat will be deleted" in page) == bool(words)
            assert words in page


def test_page_of_a_conversation_in_use_warns_of_nothing_and_its_menu_does(alice: User, redis: redis_py.Redis) -> None:
    site_says(retention_days=3)
    fresh = talk(alice, 0.5)
    client = signed_in(alice)
    assert "will be deleted" not in client.get(f"/chat/{fresh.pk}/").content.decode()
    assert "deleted in 2 days" in client.get(f"/chat/{fresh.pk}/menu/").content.decode()


def test_warning_goes_when_the_conversation_goes_on(
    alice: User, site: Callable[..., None], redis: redis_py.Redis
) -> None:
    site_says(retention_days=7)
    old = talk(alice, 6.5)
    client = signed_in(alice)
    assert "deleted within a day" in client.get(f"/chat/{old.pk}/").content.decode()
    typed = {"text": "It goes on.", "key": str(uuid.uuid4())}
    sent = client.post(f"/chat/{old.pk}/send/", typed, headers=HX).content.decode()
    assert '<p class="note" id="leaving" hidden hx-swap-oob="true"></p>' in sent
    assert "deleted within" not in client.get(f"/chat/{old.pk}/").content.decode()


def test_page_of_import_says_that_old_conversations_do_not_stay(alice: User, redis: redis_py.Redis) -> None:
    client = signed_in(alice)
    assert "are deleted here" not in client.get("/transfer/").content.decode()
    site_says(retention_days=7)
    assert "Chats are deleted here 7 days after their last message" in client.get("/transfer/").content.decode()
    refused = client.post("/transfer/import/")
    assert (refused.status_code, "are deleted here 7 days" in refused.content.decode()) == (400, True)
