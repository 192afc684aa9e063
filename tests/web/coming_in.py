"""How a person comes in by an account of another place, or with a password, for tests of signing in from outside."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx
from allauth.account.models import EmailAddress
from django.http import HttpResponse
from django.test import Client

from chatsite.accounts.models import User

LOGIN = "/accounts/oidc/login/"
CALLBACK = "http://testserver/accounts/oidc/login/callback/"
CONNECTIONS = "/accounts/3rdparty/"
PASSWORD = "correct horse"


def begin(client: Client, process: str = "login", query: str = "", login: str = LOGIN) -> HttpResponse:
    return client.post(f"{login}?process={process}{query}")


def at_provider(sent: HttpResponse, answer: str = "allow") -> str:
    """What a person does there; the path and query that their browser is sent back to."""
    assert sent.status_code == 302, sent.content.decode()
    question = urlsplit(sent["Location"])
    with httpx.Client(verify=False) as browser:  # which takes a while to read certificates that nobody here has
        page = browser.get(sent["Location"])
        assert page.status_code == 200, page.text
        consent = f"{question.scheme}://{question.netloc}/consent?{question.query}"
        back = browser.post(consent, data={"answer": answer})
    assert back.status_code == 303, back.text
    where = urlsplit(back.headers["Location"])
    assert f"{where.scheme}://{where.netloc}" == "http://testserver"
    return f"{where.path}?{where.query}"


def come_in(client: Client, process: str = "login", **options: str) -> HttpResponse:
    return client.get(at_provider(begin(client, process, **options)))


def who(client: Client) -> str | None:
    """The name of who is signed in, asked of the session itself."""
    pk = client.session.get("_auth_user_id")
    return User.objects.get(pk=pk).username if pk else None


def local(name: str, email: str = "", **values: Any) -> User:
    """Somebody with a password; an address is as little verified as one that was only typed."""
    user = User.objects.create_user(name, email, PASSWORD, **values)
    if email:
        EmailAddress.objects.create(user=user, email=email, primary=True)
    return user


def signed_in(user: User) -> Client:
    client = Client()
    assert client.post("/accounts/login/", {"login": user.username, "password": PASSWORD}).status_code == 302
    return client
