"""No surface shows staff what somebody wrote, superusers included: every route and every model of the admin is walked,
so that what is added later is walked too. The one way to read is a transcript of review: see `test_review_policy`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.contrib import admin
from django.test import RequestFactory
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.urls.converters import IntConverter, UUIDConverter
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.asgi import application
from chatsite.chat.hub import hub
from chatsite.chat.models import Attachment, Conversation, Feedback, Message, QueuedMessage, Tag
from chatsite.personas.models import Persona
from chatsite.prompts.models import PromptTemplate
from chatsite.review import actions
from chatsite.sharing.models import Share
from tests.web.reviewing import REASON, SECRET, partly_reported, people, report, set_policy, signed_in, turn

POLICIES = ("off", "reported", "reason")
MAX_ROWS = 3  # of each model: they are shown alike
PART = SECRET[:5]  # a search that would find it; the page may repeat what was looked for

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> dict[str, User]:
    return people()


@pytest.fixture
def written(cast: dict[str, User]) -> Conversation:
    """Everything that can hold what somebody wrote."""
    alice = cast["alice"]
    reported = partly_reported(alice)
    generation = Message.objects.filter(conversation=reported).exclude(generation=None)[0].generation
    generation.request = json.dumps({"messages": SECRET})
    generation.error_message = f"No such tool: {SECRET}"
    generation.save()
    call = {"id": "1", "name": "python", "arguments": SECRET, "result": SECRET}
    Message.objects.filter(conversation=reported, role="assistant").update(calls=[call])
    Persona.objects.create(owner=alice, name=SECRET, line=SECRET, system_prompt=SECRET)
    Attachment.objects.create(owner=alice, draft_of=reported, name=SECRET, text=SECRET, media_type="x", num_bytes=1)
    QueuedMessage.objects.create(conversation=reported, content=SECRET)
    reported.tags.add(Tag.objects.create(owner=alice, name=SECRET))
    PromptTemplate.objects.create(owner=alice, name="mine", title=SECRET, text=SECRET)
    Share.objects.create(
        owner=alice, conversation=reported, scope="me", title=SECRET, snapshot={"x": SECRET}, updated_at=timezone.now()
    )
    return reported


def routes(patterns: list[Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every named route of ours, with what stands in its address and the converter of that, if it has one."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            if pattern.namespace == "admin" or str(pattern.pattern) == "accounts/":
                continue  # walked by model; and pages of one's own account alone
            yield from routes(pattern.url_patterns, (*before, *([pattern.namespace] if pattern.namespace else [])))
        elif isinstance(pattern, URLPattern) and pattern.name:
            names = pattern.pattern.regex.groupindex
            yield ":".join((*before, pattern.name)), {name: pattern.pattern.converters.get(name) for name in names}


@pytest.mark.django_db(transaction=True)  # a download reads over a connection of its own
@pytest.mark.parametrize("policy", POLICIES)
def test_no_route_shows_a_superuser_what_somebody_wrote(
    cast: dict[str, User], written: Conversation, policy: str
) -> None:
    set_policy(policy)
    client = signed_in(cast["root"])
    client.raise_request_exception = False
    answer = Message.objects.filter(conversation=written).exclude(feedback=None)[0]
    known = {
        "message_id": answer.pk,
        "generation_id": answer.generation.pk,
        "attachment_id": Attachment.objects.all()[0].pk,
        "entry_id": QueuedMessage.objects.get().pk,
        "share_id": Share.objects.get().pk,
        "token": Share.objects.get().token,
        "prompt_id": PromptTemplate.objects.get().pk,
        "persona_id": Persona.objects.get().pk,
        "report_id": Feedback.objects.get(is_reported=True).pk,
        "user_id": cast["alice"].pk,
        "form": "json",
    }
    num_walked = 0
    for name, converters in routes(get_resolver().url_patterns):
        if policy != "off" and not name.startswith(("review:", "ops:")):
            continue  # they do not ask for it
        values = {key: known.get(key, _some(converter, written)) for key, converter in converters.items()}
        address = reverse(name, kwargs=values)
        for method in ("get", "post"):
            if method == "post" and name == "review:transcript":
                continue  # the one way to read, which other tests take
            response = getattr(client, method)(address)
            assert SECRET not in body_of(response).decode(errors="replace"), (method, address)
            assert response.status_code != 500, (method, address)
            if policy == "off" and name.startswith("review:") and name != "review:mine":
                assert response.status_code in (404, 405), (method, address)
                assert response.status_code == 404 or method == "post", address
            num_walked += 1
    assert client.get("/review/mine/").status_code == 200, "signed out on the way"
    assert num_walked > (80 if policy == "off" else 8)


def body_of(response: Any) -> bytes:
    if not response.streaming:
        return bytes(response.content)
    if not response.is_async:
        return b"".join(response.streaming_content)

    async def collected() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    return async_to_sync(collected)()


def _some(converter: Any, conversation: Conversation) -> Any:
    if isinstance(converter, UUIDConverter):
        return conversation.pk
    return 1 if isinstance(converter, IntConverter) else "x"


def test_no_page_of_the_admin_shows_a_superuser_what_somebody_wrote(
    cast: dict[str, User], written: Conversation
) -> None:
    actions.open_transcript(cast["rita"], written.pk, reason=REASON, ip=None)
    set_policy("off")
    client = signed_in(cast["root"])
    seen: dict[str, int] = {}

    def look(address: str, data: dict[str, Any] | None = None, *, method: str = "get") -> None:
        response = getattr(client, method)(address, data)
        if method == "post":
            client.force_login(cast["root"])  # an action may have ended all sessions
        assert SECRET not in response.content.decode(), (method, address, data)
        assert response.status_code != 500, (method, address, data)
        seen[address] = response.status_code

    for model, its_admin in admin.site._registry.items():
        base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        keys = [str(pk) for pk in model._base_manager.values_list("pk", flat=True)[:MAX_ROWS]]
        for query in ({}, {"q": PART}, {"q": "alice"}):
            look(base, query)
        look(f"{base}add/")
        for key in keys:
            for page in ("change", "history", "delete"):
                look(f"{base}{key}/{page}/")
        for action in its_admin.get_actions(_as(cast["root"])):
            look(base, {"action": action, "_selected_action": keys}, method="post")
    assert seen[f"/admin/chat/conversation/{written.pk}/change/"] == 200
    assert seen[f"/admin/chat/conversation/{written.pk}/history/"] == 403
    assert seen["/admin/review/accessevent/"] == 200


def _as(user: User) -> Any:
    request = RequestFactory().get("/admin/")
    request.user = user
    return request


@pytest.fixture
def prepared(transactional_db: None) -> tuple[str, list[str]]:
    """A superuser's key, and the ids of what alice has and reported."""
    made = people()
    conversation = Conversation.objects.create(owner=made["alice"], title=SECRET)
    answer = turn(conversation, SECRET, SECRET)
    report(answer, SECRET)
    return ApiKey.create(made["root"])[1], [str(pk) for pk in (conversation.pk, answer.pk, answer.generation.pk)]


async def test_the_api_gives_a_superuser_nothing_of_others(redis: Any, prepared: tuple[str, list[str]]) -> None:
    key, ids = prepared
    paths = [f"/v1/{kind}/{pk}" for kind in ("conversations", "chat/completions", "models", "feedback") for pk in ids]
    for path in ("/v1/models", "/v1/conversations", "/v1/feedback", *paths):
        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "scheme": "http"}
        communicator = ApplicationCommunicator(application, scope)
        await communicator.send_input({"type": "http.request", "body": b"", "more_body": False})
        start = await communicator.receive_output(timeout=10)
        body = (await communicator.receive_output(timeout=10))["body"].decode()
        await communicator.send_input({"type": "http.disconnect"})
        await communicator.wait(timeout=10)
        assert SECRET not in body, path
        assert start["status"] == (200 if path == "/v1/models" else 404), path
    await hub().close()
