"""What forms need, what no page may carry, and how the account pages look. Who gets to what: see `tests/walk`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation
from tests.web.chat_worker import StepWorker
from tests.web.test_pages import Page, answer, ask


def test_forms_need_their_token(alice: User, conversation: Conversation) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    refused = client.post(f"/chat/{conversation.pk}/send/", {"text": "x"})
    assert refused.status_code == 403
    assert b"out of date" in refused.content
    token = Page(client.get(f"/chat/{conversation.pk}/").content).value("input", "value", name="csrfmiddlewaretoken")
    sent = client.post(f"/chat/{conversation.pk}/send/", {"text": "x", "csrfmiddlewaretoken": token})
    assert sent.status_code == 302


def test_no_page_has_inline_script_or_style(
    owner: Client, alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    worker.announce()
    ask(alice, conversation)
    answer(worker, "| a |\n|:-:|\n| 1 |\n\n```py\nx = 1\n```\n")
    ask(alice, conversation, "again")
    anonymous = Client()
    pages = [
        owner.get("/"),
        owner.get(f"/chat/{conversation.pk}/"),
        owner.get(f"/chat/{conversation.pk}/delete/"),
        owner.get("/accounts/password/change/"),
        owner.get("/accounts/logout/"),
        owner.get("/nothing/here/"),
        anonymous.get("/accounts/login/"),
        anonymous.get("/accounts/signup/"),
    ]
    for page in pages:
        policy = page["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for tag, attributes in Page(page.content).elements:
            assert tag != "style"
            assert "style" not in attributes
            assert not any(name.startswith("on") or name.startswith("hx-on") for name in attributes)
            if tag == "script":
                assert attributes.get("src")


def test_account_pages_wear_our_look(site: Callable[..., None], db: None) -> None:
    login = Client().get("/accounts/login/").content
    assert b"<strong>SmolFleet</strong>" in login
    assert b"Make an account" in login
    assert b'class="page card account"' in login
    assert b'name="password"' in login
    assert b'class="btn primary"' in login
    site(sign_up_open=False)
    assert b"Sign-up is closed" in Client().get("/accounts/signup/").content
    assert b"Make an account" not in Client().get("/accounts/login/").content


def test_draft_survives_sign_in_by_leading_back(alice: User) -> None:
    alice.set_password("correct horse")
    alice.save()
    signed = Client().post("/accounts/login/?next=/chat/7/", {"login": "alice", "password": "correct horse"})
    assert (signed.status_code, signed["Location"]) == (302, "/chat/7/")


@pytest.mark.django_db
def test_forgotten_password_is_for_the_admin_where_no_mail_is_sent(client: Client, settings: Any) -> None:
    page = client.get("/accounts/login/").content.decode()
    assert "/accounts/password/reset/" not in page
    assert "An admin of this site" in page
    settings.EMAIL_HOST = "mail.example"
    assert "/accounts/password/reset/" in client.get("/accounts/login/").content.decode()
