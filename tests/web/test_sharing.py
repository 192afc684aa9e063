"""Links: they show a copy of one path, to whom their owner chose, for as long as they stand, and nothing else."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from django.http import Http404
from django.test import Client
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat.actions import attachments, feedback, tree
from chatsite.chat.actions import send as chat
from chatsite.chat.generation import record
from chatsite.chat.models import Attachment, Conversation, Feedback, Generation, Message
from chatsite.chat.queries import sidebar
from chatsite.sharing import actions
from chatsite.sharing.models import Share
from chatsite.transfer import reading, writing
from chatsite.transfer.models import Origin
from tests.web.chat_worker import StepWorker


def answer(worker: StepWorker, text: str, thought: str = "") -> None:
    attempt = worker.claim().start()
    if thought:
        attempt.think(thought)
    attempt.write(text)
    attempt.finish()
    record.record(attempt.id)


@pytest.fixture
def talked(alice: User, conversation: Conversation, worker: StepWorker) -> Conversation:
    file = attachments.add(alice, conversation, "plan.txt", b"xyzzy file text")
    chat.send_message(alice, conversation, "A <b>question</b>", attachments=[file.pk])
    answer(worker, "An **answer** <script>alert(1)</script>", thought="plugh thought")
    conversation.refresh_from_db()
    return conversation


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_link_shows_the_path_to_anyone_with_nothing_of_a_session(alice: User, talked: Conversation) -> None:
    link = actions.share(alice, talked.pk, scope="anyone")
    response = Client().get(f"/s/{link.token}/")
    page = response.content.decode()
    assert response.status_code == 200
    for part in (
        "A &lt;b&gt;question&lt;/b&gt;",
        "<strong>answer</strong>",
        "&lt;script&gt;",
        "plan.txt",
        f"{link.updated_at:%Y-%m-%d}",
    ):
        assert part in page
    for part in ("xyzzy", "plugh", "alice", "csrf", "<script", "<form"):
        assert part not in page
    assert 'name="robots" content="noindex' in page
    assert "noindex" in response["X-Robots-Tag"]
    assert not response.cookies
    assert "Cookie" not in response.get("Vary", "")
    policy = response["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "unsafe" not in policy
    assert (response["Referrer-Policy"], response["Cache-Control"]) == ("no-referrer", "private, no-store")


def test_snapshot_stays_until_it_is_updated_and_the_address_with_it(
    alice: User, talked: Conversation, worker: StepWorker
) -> None:
    link = actions.share(alice, talked.pk, scope="anyone")
    chat.send_message(alice, talked, "later question")
    running = actions.share(alice, talked.pk, scope="anyone")
    assert [turn["content"] for turn in running.snapshot["turns"]][-1] == "later question"  # no half answer
    answer(worker, "later answer")
    assert "later answer" not in Client().get(f"/s/{link.token}/").content.decode()
    updated = actions.share(alice, talked.pk, scope="anyone", with_thoughts=True)
    assert (updated.pk, updated.token) == (link.pk, link.token)
    assert updated.updated_at > link.updated_at
    page = Client().get(f"/s/{link.token}/").content.decode()
    assert "later answer" in page
    assert "plugh thought" in page


def test_list_marks_what_a_link_shows_as_long_as_it_does(alice: User, bob: User, talked: Conversation) -> None:
    def marks(user: User) -> list[bool]:
        return [row.is_shared for row in sidebar.page(user).rows]

    before = sidebar.page(alice).digest
    link = actions.share(alice, talked.pk, scope="me")
    assert marks(alice) == [True]
    assert sidebar.page(alice).digest != before
    assert "shared by a link" in signed_in(alice).get("/chat/sidebar/", headers={"HX-Request": "true"}).content.decode()
    Share.objects.filter(pk=link.pk).update(expires_at=timezone.now())
    assert marks(alice) == [False]
    Share.objects.filter(pk=link.pk).update(expires_at=None)
    actions.revoke(alice, link.pk)
    actions.share(alice, talked.pk, scope="me")
    assert marks(alice) == [True]
    actions.revoke(alice, actions.links_of(alice).get().pk)
    assert marks(alice) == [False]


def test_edited_answer_is_shown_as_such(alice: User, talked: Conversation) -> None:
    told = Message.objects.get(conversation=talked, role=Message.Role.ASSISTANT)
    link = actions.share(alice, talked.pk, scope="me")
    assert "edited" not in signed_in(alice).get(f"/s/{link.token}/").content.decode()
    tree.rewrite(alice, told, "Mine [^1]\n\n[^1]: *note*")
    link = actions.share(alice, talked.pk, scope="me")
    assert '<p class="note">edited</p>' in signed_in(alice).get(f"/s/{link.token}/").content.decode()
    exported = {form: writing.written(reading.record_of(talked), form).decode() for form in ("md", "html")}
    assert "*edited*" in exported["md"]
    assert '<p class="dim">edited</p>' in exported["html"]


def test_each_scope_opens_for_whom_it_says(alice: User, bob: User, talked: Conversation) -> None:
    def statuses(scope: str) -> list[int]:
        link = actions.share(alice, talked.pk, scope=scope)
        return [client.get(f"/s/{link.token}/").status_code for client in (Client(), signed_in(bob), signed_in(alice))]

    assert statuses("anyone") == [200, 200, 200]
    assert statuses("signed_in") == [404, 200, 200]
    assert statuses("me") == [404, 404, 200]


def test_site_can_switch_links_for_anyone_off(
    alice: User, bob: User, talked: Conversation, site: Callable[..., None]
) -> None:
    link = actions.share(alice, talked.pk, scope="anyone")
    site(share_anyone=False)
    assert Client().get(f"/s/{link.token}/").status_code == 404
    assert signed_in(bob).get(f"/s/{link.token}/").status_code == 200
    with pytest.raises(actions.ShareRefused):
        actions.share(alice, talked.pk, scope="anyone")
    page = signed_in(alice).get(f"/chat/{talked.pk}/share/").content.decode()
    assert 'value="anyone"' not in page


def test_dead_links_are_all_the_same_page(alice: User, bob: User, talked: Conversation) -> None:
    link = actions.share(alice, talked.pk, scope="anyone", days=1)
    unknown = Client().get("/s/" + "x" * 32 + "/")
    assert unknown.status_code == 404

    def page() -> str:
        response = Client().get(f"/s/{link.token}/")
        assert response.status_code == 404
        return response.content.decode().replace(link.token, "x" * 32)

    Share.objects.update(expires_at=timezone.now() - datetime.timedelta(seconds=1))
    assert page() == unknown.content.decode()
    Share.objects.update(expires_at=None, scope="signed_in")
    assert page() == unknown.content.decode()
    Share.objects.update(scope="anyone")
    User.objects.filter(pk=alice.pk).update(is_active=False)
    assert page() == unknown.content.decode()
    User.objects.filter(pk=alice.pk).update(is_active=True)
    assert Client().get(f"/s/{link.token}/").status_code == 200
    actions.revoke(alice, link.pk)
    assert page() == unknown.content.decode()
    assert "answer" not in str(Share.objects.values())  # what it showed is gone too


def test_sharing_again_after_a_revocation_makes_another_address(alice: User, talked: Conversation) -> None:
    first = actions.share(alice, talked.pk, scope="anyone")
    actions.revoke(alice, first.pk)
    second = actions.share(alice, talked.pk, scope="anyone")
    assert second.token != first.token
    assert len(second.token) >= 32
    assert Client().get(f"/s/{first.token}/").status_code == 404


def test_only_the_owner_shares_sees_and_revokes(alice: User, bob: User, talked: Conversation) -> None:
    link = actions.share(alice, talked.pk, scope="me")
    stranger = signed_in(bob)
    assert stranger.get(f"/chat/{talked.pk}/share/").status_code == 404
    assert stranger.post(f"/chat/{talked.pk}/share/", {"scope": "anyone"}).status_code == 404
    assert stranger.post(f"/links/{link.pk}/revoke/").status_code == 404
    assert link.token not in stranger.get("/links/").content.decode()
    assert Client().get("/links/").status_code == 302
    with pytest.raises(Http404):
        actions.share(bob, talked.pk, scope="anyone")
    link.refresh_from_db()
    assert (link.scope, link.revoked_at) == ("me", None)


def test_pages_make_update_list_and_revoke_a_link(alice: User, talked: Conversation) -> None:
    client = signed_in(alice)
    address = f"/chat/{talked.pk}/share/"
    assert client.post(address, {"scope": "anyone", "days": "7"}).status_code == 302
    link = Share.objects.get()
    assert link.expires_at is not None
    assert abs((link.expires_at - timezone.now()).days - 7) <= 1
    assert f"/s/{link.token}/" in client.get(address).content.decode()
    assert f"/s/{link.token}/" in client.get("/links/").content.decode()
    assert client.post(address, {"scope": "anyone", "days": "0"}).status_code == 400
    assert client.post(address, {"scope": "everyone"}).status_code == 400
    assert client.post(f"/links/{link.pk}/revoke/", {"back": "list"})["Location"] == "/links/"
    assert link.token not in client.get("/links/").content.decode()


def test_nothing_to_show_is_no_link(alice: User, conversation: Conversation) -> None:
    response = signed_in(alice).post(f"/chat/{conversation.pk}/share/", {"scope": "anyone"})
    assert response.status_code == 400
    assert not Share.objects.exists()


def test_link_dies_with_its_conversation(alice: User, talked: Conversation) -> None:
    link = actions.share(alice, talked.pk, scope="anyone")
    talked.delete()
    assert Client().get(f"/s/{link.token}/").status_code == 404
    assert not Share.objects.exists()


def test_admin_sees_that_there_is_a_link_but_not_where_nor_what(alice: User, sam: User, talked: Conversation) -> None:
    link = actions.share(alice, talked.pk, scope="anyone")
    client = signed_in(sam)
    for path in ("", f"{link.pk}/change/"):
        page = client.get(f"/admin/sharing/share/{path}")
        assert page.status_code == 200
        for secret in (link.token, "question", "answer"):
            assert secret not in page.content.decode()


def test_deleting_a_person_takes_everything_of_theirs(alice: User, bob: User, talked: Conversation) -> None:
    from chatsite.chat.actions import temporary

    feedback.give(alice, Message.objects.get(role="assistant"), 1)
    attachments.add(alice, None, "draft.txt", b"x")
    actions.share(alice, talked.pk, scope="anyone")
    temporary.ask(alice, [], "kept nowhere")
    Origin.objects.create(owner=alice, conversation=talked, digest="d")
    alice.delete()
    for model in (Conversation, Message, Generation, Attachment, Feedback, Share, Origin):
        assert not model.objects.exists(), model  # type: ignore[attr-defined]
    assert list(User.objects.all()) == [bob]
