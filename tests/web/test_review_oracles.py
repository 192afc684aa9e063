"""No answer of a page of staff depends on what somebody wrote: a question that would narrow by it finds the same,
whether it is right or wrong. Else a title could be guessed letter by letter, and nobody would be on record for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.db import models
from django.http import QueryDict
from django.test import Client, RequestFactory
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.chat.models import (
    Attachment,
    Conversation,
    Feedback,
    Generation,
    Message,
    QueuedMessage,
    SearchEntry,
    Tag,
)
from chatsite.personas.models import Persona
from chatsite.prompts.models import PromptTemplate
from chatsite.review.models import AccessEvent
from chatsite.sharing.models import Share
from tests.web.reviewing import people, report, set_policy, signed_in, turn

SECRET = "xyzzy-plugh"
RIGHT, WRONG = SECRET[:4], "qwrty"[:4]
WRITTEN: dict[type[models.Model], set[str]] = {
    Conversation: {"title", "system_prompt"},
    Message: {"content", "reasoning", "calls"},
    Attachment: {"name", "text"},
    Feedback: {"comment"},
    QueuedMessage: {"content"},
    Tag: {"name"},
    Generation: {"request", "error_message", "content_sha256"},
    SearchEntry: {"vector"},
    PromptTemplate: {"name", "title", "text"},
    Persona: {"name", "line", "system_prompt"},
    Share: {"title", "snapshot", "token"},
    ApiKey: {"sha256"},
    User: {"password"},
}
SHOWN_IF_SHARED = (PromptTemplate, Persona)  # their own list has only what everybody sees
LOOKUPS = ("", "__startswith", "__iregex", "__gt")
MAX_DEPTH = 3

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> dict[str, User]:
    return people()


@pytest.fixture
def written(cast: dict[str, User]) -> Conversation:
    """`SECRET` begins every text."""
    alice = cast["alice"]
    conversation = Conversation.objects.create(owner=alice, title=SECRET, system_prompt=SECRET, model="m")
    answer = turn(conversation, SECRET, SECRET)
    answer.calls = [{"id": "1", "name": "python", "arguments": SECRET, "result": SECRET}]
    answer.save()
    Generation.objects.update(request=SECRET, error_message=SECRET, error_code="x", status="failed")
    report(answer, SECRET)
    Attachment.objects.create(
        owner=alice, message=answer.parent, name=SECRET, text=SECRET, media_type="text/plain", num_bytes=1
    )
    QueuedMessage.objects.create(conversation=conversation, content=SECRET)
    conversation.tags.add(Tag.objects.create(owner=alice, name=SECRET))
    PromptTemplate.objects.create(owner=alice, name=SECRET, title=SECRET, text=SECRET)
    Persona.objects.create(owner=alice, name=SECRET, line=SECRET, system_prompt=SECRET)
    Share.objects.create(
        owner=alice, conversation=conversation, scope="me", title=SECRET, snapshot={}, updated_at=timezone.now()
    )
    ApiKey.create(alice, "mine")
    return conversation


def shown(client: Client, address: str, asked: dict[str, str]) -> tuple[int, str]:
    """Status and page, without what differs each time and without what was asked itself."""
    response = client.get(address, asked)
    text = re.sub(r'name="csrfmiddlewaretoken" value="[^"]+"', "", response.content.decode())
    text += response.get("Location", "")
    for value in asked.values():
        text = text.replace(value, "…") if value in (RIGHT, WRONG) else text
    return response.status_code, text


def paths_of(model: type[models.Model], depth: int = MAX_DEPTH) -> Iterator[str]:
    """Every way from a row of `model` to a column that somebody wrote, as a lookup has it."""
    for field in model._meta.get_fields(include_hidden=False):
        if field.name in WRITTEN.get(model, ()):
            yield field.name
        elif field.is_relation and depth and field.related_model is not None and field.related_model != "self":
            for rest in paths_of(field.related_model, depth - 1):  # type: ignore[arg-type]
                yield f"{field.name}__{rest}"


def test_no_address_of_the_admin_narrows_by_what_somebody_wrote(cast: dict[str, User]) -> None:
    request: Any = RequestFactory().get("/admin/")
    request.user = cast["root"]
    num_asked = 0
    for model, its_admin in admin.site._registry.items():
        for path in paths_of(model):
            if model in SHOWN_IF_SHARED and "__" not in path:
                continue  # by request, below
            for lookup in LOOKUPS:
                assert not its_admin.lookup_allowed(f"{path}{lookup}", RIGHT, request), (model, path)
                num_asked += 1
    assert num_asked > 1_000
    assert {"title", "messages__content", "shares__title"} <= set(paths_of(Conversation))
    assert "conversations__messages__attachments__name" in set(paths_of(User))


def test_no_list_of_the_admin_differs_by_what_somebody_wrote(cast: dict[str, User], written: Conversation) -> None:
    client = signed_in(cast["root"])
    for model in admin.site._registry:
        base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        own = [f"{name}__startswith" for name in sorted(WRITTEN.get(model, ()))]
        for name in ("q", *own):
            right, wrong = (shown(client, base, {name: value}) for value in (RIGHT, WRONG))
            assert right == wrong, (base, name)
            assert SECRET not in right[1]


def test_no_page_of_staff_differs_by_what_somebody_wrote(cast: dict[str, User], written: Conversation) -> None:
    """Whatever the parameter is called, beside one that finds the conversation. Any conversation may be read here."""
    set_policy("reason")
    client = signed_in(cast["root"])
    names = ("owner", "title", "q", "search", "content", "model", "feedback", "title__startswith", "sort")
    pages = {
        "/review/": "owner=alice",
        "/review/reports/": "",
        f"/review/{written.pk}/": "",
        f"/review/reports/{Feedback.objects.get().pk}/": "",
        "/ops/audit/": "person=alice",
        "/ops/analytics/": "",
    }
    for page, finding in pages.items():
        for name in names:
            beside = {key: value for key, value in QueryDict(finding).items() if key != name}
            right, wrong = (shown(client, page, {**beside, name: value}) for value in (RIGHT, WRONG))
            assert right == wrong, (page, name)
            assert SECRET not in right[1], (page, name)
    assert str(written.pk) in shown(client, "/review/", {"owner": "alice", "title": WRONG})[1], (
        "it is there to be found"
    )
    assert not AccessEvent.objects.exists()


def test_no_order_of_the_list_depends_on_titles(cast: dict[str, User], written: Conversation) -> None:
    """Two lists whose titles are swapped are the same."""
    other = Conversation.objects.create(owner=cast["alice"], title="aaa", model="m")
    client = signed_in(cast["rita"])
    before = [shown(client, "/review/", {"owner": "alice", "sort": key, "o": key}) for key in ("title", "-title")]
    Conversation.objects.filter(pk=other.pk).update(title="zzz")
    after = [shown(client, "/review/", {"owner": "alice", "sort": key, "o": key}) for key in ("title", "-title")]
    assert before == after
