"""Who gets to the chat's pages and who is sent away, and what no page may carry."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation, Generation
from tests.web.chat_worker import StepWorker
from tests.web.test_pages import HX, Page, answer, ask, signed_in


def routes(conversation: Conversation, generation: Generation) -> list[tuple[str, str]]:
    return [
        ("get", f"/chat/{conversation.pk}/"),
        ("get", f"/chat/{conversation.pk}/earlier/"),
        ("get", f"/chat/{conversation.pk}/delete/"),
        ("get", f"/chat/messages/{generation.message_id}/"),
        ("post", f"/chat/{conversation.pk}/send/"),
        ("post", f"/chat/{conversation.pk}/rename/"),
        ("post", f"/chat/{conversation.pk}/delete/"),
        ("post", f"/chat/messages/{generation.message_id}/retry/"),
        ("post", f"/chat/messages/{generation.message_id}/select/"),
        ("post", f"/chat/generations/{generation.pk}/stop/"),
    ]


def test_strangers_and_staff_find_nothing(alice: User, bob: User, sam: User, conversation: Conversation) -> None:
    generation = ask(alice, conversation, "secret words")
    for user in (bob, sam):
        client = signed_in(user)
        for method, url in routes(conversation, generation):
            for headers in ({}, HX):
                found = getattr(client, method)(url, {"text": "x", "title": "x"}, headers=headers)
                assert found.status_code == 404, url
                assert b"secret" not in found.content
        assert b"secret" not in client.get("/").content
    generation.refresh_from_db()
    assert not generation.stop_requested
    assert Conversation.objects.get().title == "secret words"


def test_nobody_signed_in_is_sent_to_the_sign_in(alice: User, conversation: Conversation) -> None:
    generation = ask(alice, conversation)
    client = Client()
    for method, url in [*routes(conversation, generation), ("get", "/"), ("post", "/chat/"), ("get", "/chat/sidebar/")]:
        plain = getattr(client, method)(url)
        assert plain.status_code == 302, url
        assert plain["Location"].startswith("/accounts/login/?next=")
        fragment = getattr(client, method)(url, headers={**HX, "HX-Current-URL": "http://testserver/chat/7/"})
        assert fragment.status_code == 401
        assert fragment["HX-Redirect"] == "/accounts/login/?next=/chat/7/"


def test_wrong_methods_and_ids(owner: Client, conversation: Conversation) -> None:
    assert owner.post("/").status_code == 405
    assert owner.get("/chat/").status_code == 405
    assert owner.get(f"/chat/{conversation.pk}/send/").status_code == 405
    assert owner.get("/chat/not-an-id/").status_code == 404
    assert owner.get(f"/chat/{uuid.uuid4()}/").status_code == 404


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
