"""Django's admin shows the frame of things and never what anybody wrote: that is read in review, where it is recorded.

`SECRET` stands in every text column; no page, search, filter or lookup of the admin may give a letter of it away.
"""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.review import actions
from chatsite.review.models import AccessEvent

SECRET = "xyzzy-plugh"
FRAMES = ("conversation", "message", "generation")

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice", email="alice@example.org")


@pytest.fixture
def root(alice: User) -> User:
    return User.objects.create_superuser("root")


@pytest.fixture
def admin(root: User) -> Client:
    client = Client()
    client.force_login(root)
    return client


@pytest.fixture
def answer(alice: User) -> Message:
    conversation = Conversation.objects.create(owner=alice, title=f"{SECRET} title", system_prompt=SECRET, model="m")
    question = Message.objects.create(conversation=conversation, role="user", content=f"{SECRET}?")
    answer = Message.objects.create(
        conversation=conversation, role="assistant", parent=question, content=f"{SECRET}!", reasoning=SECRET
    )
    Generation.objects.create(user=alice, message=answer, model="m", request=f'{{"x":"{SECRET}"}}')
    conversation.leaf = answer
    conversation.save()
    return answer


def rows(answer: Message) -> dict[str, object]:
    generation = Generation.objects.get(message=answer)
    return {"conversation": answer.conversation_id, "message": answer.pk, "generation": generation.pk}


def test_no_page_of_the_admin_shows_text(admin: Client, answer: Message, alice: User) -> None:
    paths = ["/admin/", "/admin/chat/", f"/admin/accounts/user/{alice.pk}/change/"]
    for model, pk in rows(answer).items():
        paths += [f"/admin/chat/{model}/", f"/admin/chat/{model}/{pk}/change/"]
        paths += [f"/admin/chat/{model}/{pk}/change/?_popup=1", f"/admin/chat/{model}/?q=alice"]
    for path in paths:
        page = admin.get(path)
        assert page.status_code == 200, path
        assert SECRET not in page.content.decode(), path


@pytest.mark.parametrize("model", FRAMES)
def test_lists_are_found_by_owner_and_id(admin: Client, answer: Message, alice: User, model: str) -> None:
    pk = str(rows(answer)[model])
    for wanted in ("alice", "ALICE@example.org", pk, str(alice.pk)):
        assert f"/{pk}/change/" in admin.get(f"/admin/chat/{model}/", {"q": wanted}).content.decode(), wanted
    for wanted in ("ali", SECRET, str(uuid4())):
        assert f"/{pk}/change/" not in admin.get(f"/admin/chat/{model}/", {"q": wanted}).content.decode(), wanted


@pytest.mark.parametrize(
    "lookup",
    [
        "content__startswith",
        "content",
        "reasoning__icontains",
        "title__startswith",
        "system_prompt__contains",
        "request__contains",
        "conversation__title__startswith",
        "message__content__startswith",
        "children__content__startswith",
        "leaf__content__startswith",
    ],
)
@pytest.mark.parametrize("model", FRAMES)
def test_no_address_asks_about_text(admin: Client, answer: Message, model: str, lookup: str) -> None:
    """A filter on a text column tells the text letter by letter."""
    answers = {admin.get(f"/admin/chat/{model}/", {lookup: value}).status_code for value in (SECRET[0], "q")}
    assert answers <= {400, 302}
    assert len(answers) == 1


def test_no_address_reaches_text_from_elsewhere(admin: Client, answer: Message) -> None:
    for path, lookup in (
        ("accounts/user", "conversations__title__startswith"),
        ("accounts/user", "conversations__messages__content__startswith"),
        ("accounts/user", "generations__request__startswith"),
        ("accounts/apikey", "user__conversations__title__startswith"),
        ("accounts/apikey", "sha256__startswith"),
        ("review/accessevent", "conversation__title__startswith"),
    ):
        assert admin.get(f"/admin/{path}/", {lookup: SECRET[0]}).status_code == 400, lookup


@pytest.mark.parametrize("model", FRAMES)
def test_filters_beside_the_list_work(admin: Client, answer: Message, model: str) -> None:
    queries = {
        "conversation": {"model__exact": "m"},
        "message": {"role__exact": "assistant"},
        "generation": {"status__exact": "active", "source__exact": "chat"},
    }
    page = admin.get(f"/admin/chat/{model}/", {**queries[model], "created_at__gte": "2020-01-01 00:00:00+00:00"})
    assert page.status_code == 200
    assert f"/{rows(answer)[model]}/change/" in page.content.decode()


def test_views_that_print_objects_are_shut(admin: Client, answer: Message) -> None:
    for model, pk in rows(answer).items():
        assert admin.get(f"/admin/chat/{model}/add/").status_code == 403
        assert admin.get(f"/admin/chat/{model}/{pk}/delete/").status_code == 403
        assert admin.get(f"/admin/chat/{model}/{pk}/history/").status_code == 403
        assert admin.post(f"/admin/chat/{model}/{pk}/change/", {"title": "x", "content": "x"}).status_code == 403
    for model, field in (("message", "conversation"), ("message", "parent"), ("generation", "message")):
        query = {"app_label": "chat", "model_name": model, "field_name": field, "term": ""}
        found = admin.get("/admin/autocomplete/", query)
        assert found.status_code in (403, 404), (model, field)
        assert SECRET not in found.content.decode()
    assert Message.objects.get(pk=answer.pk).content == f"{SECRET}!"


def test_a_row_leads_to_its_transcript_in_review(admin: Client, answer: Message) -> None:
    for model in ("conversation", "message"):
        page = admin.get(f"/admin/chat/{model}/{rows(answer)[model]}/change/").content.decode()
        assert f'href="/review/{answer.conversation_id}/"' in page


def test_text_columns_are_not_even_loaded(admin: Client, answer: Message, django_assert_max_num_queries) -> None:  # type: ignore[no-untyped-def]
    wanted = rows(answer)
    with django_assert_max_num_queries(50) as queries:
        for model, pk in wanted.items():
            admin.get(f"/admin/chat/{model}/")
            admin.get(f"/admin/chat/{model}/{pk}/change/")
    for query in queries.captured_queries:
        for column in ("content", "reasoning", "title", "system_prompt", "request"):
            assert f'."{column}"' not in query["sql"], query["sql"]


def test_staff_see_only_what_they_were_granted(answer: Message) -> None:
    sam = User.objects.create_user("sam", is_staff=True)
    client = Client()
    client.force_login(sam)
    for model in FRAMES:
        assert client.get(f"/admin/chat/{model}/").status_code == 403
    sam.user_permissions.add(Permission.objects.get(codename="view_message"))
    assert client.get("/admin/chat/message/").status_code == 200
    assert client.get("/admin/chat/generation/").status_code == 403
    assert Client().get("/admin/chat/message/").status_code == 302


def test_deleting_people_counts_their_things_and_prints_none(admin: Client, answer: Message, alice: User) -> None:
    page = admin.get(f"/admin/accounts/user/{alice.pk}/delete/")
    assert page.status_code == 200
    assert SECRET not in page.content.decode()
    assert "messages: 2" in page.content.decode().lower()
    marked = {"action": "delete_selected", "_selected_action": [str(alice.pk)]}
    assert SECRET not in admin.post("/admin/accounts/user/", marked).content.decode()
    assert admin.post(f"/admin/accounts/user/{alice.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Message.objects.exists()


def test_keys_are_shown_by_their_beginning_alone(admin: Client, alice: User) -> None:
    key, secret = ApiKey.create(alice, "script")
    for path in (
        "/admin/accounts/apikey/",
        f"/admin/accounts/apikey/{key.pk}/change/",
        f"/admin/accounts/user/{alice.pk}/change/",
    ):
        page = admin.get(path).content.decode()
        assert key.shown in page
        assert secret not in page
        assert key.sha256 not in page
    assert admin.get("/admin/accounts/apikey/add/").status_code == 403


def test_revoking_is_an_action_that_stays(admin: Client, root: User, alice: User) -> None:
    key, _ = ApiKey.create(alice)
    marked = {"action": "revoke", "_selected_action": [str(key.pk)]}
    assert admin.post("/admin/accounts/apikey/", marked, follow=True).status_code == 200
    revoked_at = ApiKey.objects.get().revoked_at
    assert revoked_at is not None
    admin.post("/admin/accounts/apikey/", marked)
    assert ApiKey.objects.get().revoked_at == revoked_at


def test_a_key_can_be_named_and_given_an_end(admin: Client, alice: User) -> None:
    key, _ = ApiKey.create(alice)
    end = timezone.now().replace(microsecond=0)
    fields = {"name": "script", "expires_at_0": f"{end:%Y-%m-%d}", "expires_at_1": f"{end:%H:%M:%S}"}
    assert admin.post(f"/admin/accounts/apikey/{key.pk}/change/", fields).status_code == 302
    key.refresh_from_db()
    assert (key.name, key.expires_at, key.revoked_at, key.user) == ("script", end, None, alice)


def test_a_user_can_be_added(admin: Client) -> None:
    password = "correct horse battery"
    fields = {"username": "carol", "usable_password": "true", "password1": password, "password2": password}
    assert admin.post("/admin/accounts/user/add/", fields).status_code == 302
    assert User.objects.get(username="carol").check_password(password)


def test_access_records_are_to_read(admin: Client, root: User, answer: Message) -> None:
    actions.open_transcript(root, answer.conversation_id, reason="A report", ip=None)
    event = AccessEvent.objects.get()
    listed = admin.get("/admin/review/accessevent/", {"q": str(answer.conversation_id)}).content.decode()
    assert "A report" in listed
    base = f"/admin/review/accessevent/{event.pk}"
    page = admin.get(f"{base}/change/")
    assert page.status_code == 200
    assert SECRET not in page.content.decode() + listed
    assert admin.post(f"{base}/change/", {"reason": "x"}).status_code == 403
    assert admin.get(f"{base}/delete/").status_code == 403
    assert admin.get("/admin/review/accessevent/add/").status_code == 403
