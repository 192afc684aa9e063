"""People and a scripted worker for tests of the site. Fixed names: alice owns, bob is a stranger, sam is staff."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis as redis_py
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat import actions, answering
from chatsite.chat import hub as hub_module
from chatsite.chat.hub import Hub
from chatsite.chat.models import Conversation
from tests.web.chat_worker import MODEL, StepWorker


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
    return actions.start_conversation(alice)


@pytest.fixture
def owner(alice: User, site: Callable[..., None], redis: redis_py.Redis) -> Client:
    """Alice's browser, signed in."""
    client = Client()
    client.force_login(alice)
    return client


@pytest.fixture
def sent(alice: User, conversation: Conversation) -> answering.Sent:
    """Alice's first message, whose answer nobody writes yet."""
    return actions.send_message(alice, conversation, "question")


@pytest_asyncio.fixture
async def hub(redis: redis_py.Redis) -> AsyncIterator[Hub]:
    """The hub of this test's event loop, closed at its end."""
    hub = hub_module.hub()
    yield hub
    await hub.close()
    assert hub.num_viewers == 0
