"""People and a scripted worker for tests of the site. Fixed names: alice owns, bob is a stranger, sam is staff.

ann has a password. After them stands what the files of one subject share: the audit log, signing in from outside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis as redis_py
from django.db import connection
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import answer, send
from chatsite.chat.models import Conversation
from chatsite.chat.streams import hub as hub_module
from chatsite.chat.streams.hub import Hub
from chatsite.outside_config import OpenIDConfig, OutsideConfig
from tests.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider
from tests.web import auditing, enrolling
from tests.web.auditing import World
from tests.web.chat_worker import MODEL, StepWorker
from tests.web.coming_in import CALLBACK
from tests.web.strict_site import StrictSite, strictly


@pytest.fixture
def site(settings: Any) -> Callable[..., None]:
    """Change values of `settings.SMOLFLEET` for this test."""

    def change(**values: object) -> None:
        settings.SMOLFLEET = settings.SMOLFLEET.replace(**values)

    change(default_model=MODEL, max_requests_per_minute=0, model_titles=False)
    return change


@pytest.fixture
def alice(transactional_db: None) -> User:
    return User.objects.create_user("alice", email="alice@example.org")


@pytest.fixture
def bob(transactional_db: None) -> User:
    return User.objects.create_user("bob")


@pytest.fixture
def sam(transactional_db: None) -> User:
    return User.objects.create_user("sam", is_staff=True, is_superuser=True)


@pytest.fixture
def worker(redis: redis_py.Redis, settings: Any) -> StepWorker:
    return StepWorker(redis, settings.INFERENCE)


@pytest.fixture
def conversation(alice: User, site: Callable[..., None], redis: redis_py.Redis) -> Conversation:
    return send.start_conversation(alice)


@pytest.fixture
def owner(alice: User, site: Callable[..., None], redis: redis_py.Redis) -> Client:
    """Alice's browser, signed in."""
    client = Client()
    client.force_login(alice)
    return client


@pytest.fixture
def sent(alice: User, conversation: Conversation) -> answer.Sent:
    """Alice's first message, whose answer nobody writes yet."""
    return send.send_message(alice, conversation, "question")


@pytest_asyncio.fixture
async def hub(redis: redis_py.Redis) -> AsyncIterator[Hub]:
    """The hub of this test's event loop, closed at its end."""
    hub = hub_module.hub()
    yield hub
    await hub.close()
    assert hub.num_viewers == 0


@pytest.fixture
def quick_passwords(settings: Any) -> None:
    """A hash that is slow on purpose is tested elsewhere; here it would be most of the time."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def ann(db: None, quick_passwords: None) -> User:
    return User.objects.create_user("ann", password=enrolling.PASSWORD)


@pytest.fixture
def page(ann: User) -> Client:
    """A browser in which ann is signed in and has just typed her password."""
    client = Client()
    assert enrolling.sign_in(client)["Location"] == "/"
    confirmed = client.post("/accounts/reauthenticate/", {"password": enrolling.PASSWORD})
    assert confirmed.status_code == 302
    return client


@pytest.fixture
def world(redis: redis_py.Redis, settings: Any) -> World:
    """The people of tests of the audit log."""
    hashers = ("MD5PasswordHasher", "PBKDF2PasswordHasher")  # the first is quick
    settings.PASSWORD_HASHERS = [f"django.contrib.auth.hashers.{name}" for name in hashers]
    root = User.objects.create_superuser("root", password=auditing.PASSWORD)
    alice = User.objects.create_user("alice", email="alice@example.org", password=auditing.PASSWORD)
    return World(root, alice, redis)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(redirect_uris={CALLBACK}) as provider:
        yield provider


@pytest.fixture
def outside(site: Callable[..., None], redis: Any, provider: Provider) -> Callable[..., None]:
    """Sets the site up with that provider; again with other values of `OpenIDConfig`, or `None` for none."""

    def set_up(**values: Any) -> None:
        config = OpenIDConfig(
            **{"issuer": provider.issuer, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "name": "Corp"}
            | values
        )
        site(outside=OutsideConfig(openid=config))

    set_up()
    return set_up


@pytest.fixture(scope="session")
def strict_process(
    django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StrictSite]:
    folder = tmp_path_factory.mktemp("bodies")
    with django_db_blocker.unblock(), strictly(str(connection.settings_dict["NAME"]), folder) as site:
        yield site


@pytest.fixture
def server(strict_process: StrictSite, transactional_db: None) -> StrictSite:
    """The web process with small limits and little patience. A module may have another of this name."""
    return strict_process


@pytest.fixture
def cookie(alice: User) -> str:
    """The session of Alice's browser."""
    browser = Client()
    browser.force_login(alice)
    return browser.cookies["sessionid"].value
