"""Personas: whose they are, who shares them, which settings they may have, and chats that begin with one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import presets
from chatsite.chat.actions.presets import MAX_SHOWN
from chatsite.chat.models import Conversation, Generation
from chatsite.personas import library
from chatsite.personas.library import PersonaRefused
from chatsite.personas.models import Persona
from tests.web.chat_worker import MODEL, StepWorker
from tests.web.test_pages import Page, signed_in

SETTINGS = {
    "model": MODEL,
    "system_prompt": "Answer in <b>rhymes</b>.\nAlways.",
    "thinking": False,
    "tools": True,
    "thinking_budget": 50,
    "temperature": 0.25,
    "top_p": 0.5,
    "max_tokens": 12,
}
TYPED = {**SETTINGS, "thinking": "off", "tools": "on"}
HX = {"HX-Request": "true"}


@pytest.fixture
def owner(alice: User, site: Callable[..., None], worker: StepWorker) -> Client:
    worker.announce()
    return signed_in(alice)


def keep(user: User, name: str = "Poet", *, shared: bool = False, **settings: Any) -> Persona:
    return library.save(user, Persona(), name=name, is_shared=shared, **settings)


def settings_of(row: Conversation | Persona) -> dict[str, Any]:
    return {name: getattr(row, name) for name in SETTINGS}


def sent_by(page: bytes) -> dict[str, str]:
    """What the browser would send with the first message, the script not yet loaded or absent."""
    sent: dict[str, str] = {}
    select = ""
    for tag, found in Page(page).elements:
        if tag == "select":
            select = found.get("name") or ""
        if tag == "option" and "selected" in found and select:
            sent[select] = found["value"] or ""
        if tag == "input" and found.get("name") and found.get("type") in ("hidden", "text"):
            sent[found["name"] or ""] = found.get("value") or ""
    text = page.decode().split('name="system_prompt"')[1].split(">\n", 1)[1].split("</textarea>")[0]
    return {**sent, "system_prompt": text.replace("&lt;", "<").replace("&gt;", ">")}


# -- keeping them


def test_pages_make_change_and_delete(owner: Client) -> None:
    made = owner.post("/personas/new/", {"name": " The \n Poet ", "line": "In <i>verse</i>", **TYPED})
    assert (made.status_code, made["Location"]) == (302, "/personas/")
    row = Persona.objects.get()
    assert (row.name, row.line, row.is_shared) == ("The Poet", "In <i>verse</i>", False)
    assert settings_of(row) == SETTINGS
    listed = owner.get("/personas/").content.decode()
    assert "In &lt;i&gt;verse&lt;/i&gt;" in listed
    assert f'href="/?persona={row.pk}"' in listed
    form = owner.get(f"/personas/{row.pk}/").content
    assert sent_by(form)["model"] == MODEL
    assert sent_by(form)["thinking"] == "off"
    assert Page(form).value("input", "value", name="temperature") == "0.25"
    changed = owner.post(
        f"/personas/{row.pk}/", {"name": "Poet", "system_prompt": "", "thinking": "", "max_tokens": ""}
    )
    assert changed.status_code == 302
    row.refresh_from_db()
    assert (row.name, row.line, row.system_prompt, row.thinking, row.max_tokens) == ("Poet", "", "", None, None)
    assert row.temperature == 0.25  # it was not sent
    assert b"Delete Poet?" in owner.get(f"/personas/{row.pk}/delete/").content
    assert owner.post(f"/personas/{row.pk}/delete/")["Location"] == "/personas/"
    assert not Persona.objects.exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": " "}, "This field is required."),
        ({"name": "x" * 61}, "at most 60 characters"),
        ({"name": "Taken"}, "a persona of this name already"),
        ({"line": "x" * 161}, "at most 160 characters"),
        ({"model": "nosuch"}, "no model"),
        ({"system_prompt": "x" * 51}, "51 characters; at most 50"),
        ({"thinking": "perhaps"}, "Select a valid choice"),
        ({"thinking_budget": "-1"}, "thinking_budget"),
        ({"temperature": "hot"}, "Enter a number"),
        ({"temperature": "-1"}, "temperature"),
        ({"top_p": "7"}, "top_p"),
        ({"max_tokens": "0"}, "max_tokens"),
        ({"max_tokens": str(10**12)}, "max_tokens"),
        ({"thinking_budget": str(10**12)}, "thinking_budget"),
    ],
)
def test_what_a_conversation_cannot_have_no_persona_has(
    owner: Client, alice: User, site: Callable[..., None], fields: dict[str, str], said: str
) -> None:
    keep(alice, "Taken")
    site(max_message_chars=50)
    refused = owner.post("/personas/new/", {"name": "Mine", "line": "kept words", **fields})
    page = refused.content.decode()
    assert refused.status_code == 400
    assert said in page
    assert page.count('class="errorlist') == 1
    assert "kept words" in page or "line" in fields
    assert Persona.objects.count() == 1


def test_switch_of_tools_is_there_while_the_site_has_some(
    owner: Client, alice: User, site: Callable[..., None]
) -> None:
    row = keep(alice, tools=True)
    site(tools=())
    assert b'name="tools"' not in owner.get(f"/personas/{row.pk}/").content
    assert owner.post(f"/personas/{row.pk}/", {"name": "Poet", "tools": "off"}).status_code == 302
    row.refresh_from_db()
    assert row.tools  # what cannot be seen is not changed


def test_model_that_is_away_may_stay_and_no_other_may_come(owner: Client, alice: User) -> None:
    row = keep(alice, model=MODEL)
    Persona.objects.update(model="gone")
    row.refresh_from_db()
    form = owner.get(f"/personas/{row.pk}/").content
    assert b'<option value="gone" selected>gone (away)</option>' in form
    assert owner.post(f"/personas/{row.pk}/", {"name": "Poet", "model": "gone", "top_p": "0.9"}).status_code == 302
    assert owner.post(f"/personas/{row.pk}/", {"name": "Poet", "model": "other"}).status_code == 400
    row.refresh_from_db()
    assert (row.model, row.top_p) == ("gone", 0.9)


def test_one_person_has_at_most_a_hundred(alice: User, bob: User, redis: Any) -> None:
    Persona.objects.bulk_create(Persona(owner=alice, name=str(number)) for number in range(library.MAX_PERSONAS))
    with pytest.raises(PersonaRefused, match="100 personas"):
        keep(alice, "one more")
    keep(bob, "his first")
    library.save(alice, Persona.objects.get(owner=alice, name="7"), name="renamed")


def test_only_staff_share_and_others_begin_with_what_is_shared(
    owner: Client, alice: User, bob: User, sam: User
) -> None:
    with pytest.raises(PersonaRefused, match="Only staff"):
        keep(alice, shared=True)
    assert b"is_shared" not in owner.get("/personas/new/").content
    owner.post("/personas/new/", {"name": "Mine", "is_shared": "on"})
    assert not Persona.objects.get().is_shared
    staff = signed_in(sam)
    staff.post("/personas/new/", {"name": "Ours", "is_shared": "on"})
    ours = Persona.objects.get(name="Ours")
    assert ours.is_shared
    assert [row.name for row in library.usable(alice)] == ["Mine", "Ours"]
    assert [row.name for row in library.usable(bob)] == ["Ours"]
    assert b"Ours" in owner.get("/personas/").content
    staff.post(f"/personas/{ours.pk}/", {"name": "Ours"})  # the box is not ticked any more
    assert list(library.usable(bob)) == []
    Persona.objects.update(is_shared=True)
    User.objects.filter(pk=sam.pk).update(is_active=False)
    assert [row.name for row in library.usable(bob)] == ["Mine"]


def test_strangers_find_nothing(owner: Client, alice: User, bob: User, sam: User) -> None:
    mine, ours = keep(alice, "secret"), keep(sam, "ours", shared=True)
    client = signed_in(bob)
    for pk in (mine.pk, ours.pk, uuid.uuid4()):
        for url in (f"/personas/{pk}/", f"/personas/{pk}/delete/"):
            assert client.get(url).status_code == 404
            assert client.post(url, {"name": "x"}).status_code == 404
            assert Client().get(url)["Location"].startswith("/accounts/login/")
    assert b"secret" not in client.get("/personas/").content
    assert b"secret" not in client.get("/").content
    assert {row.name for row in Persona.objects.all()} == {"secret", "ours"}


def test_admin_sees_shared_ones_alone_and_takes_them_back(alice: User, sam: User) -> None:
    mine, ours = keep(alice, "secret"), keep(sam, "ours", shared=True, system_prompt="For all")
    admin = signed_in(sam)
    assert b"secret" not in admin.get("/admin/personas/persona/").content
    assert admin.get(f"/admin/personas/persona/{mine.pk}/change/").status_code == 302
    assert b"For all" in admin.get(f"/admin/personas/persona/{ours.pk}/change/").content
    assert admin.post(f"/admin/personas/persona/{ours.pk}/change/", {}).status_code == 302
    ours.refresh_from_db()
    assert (ours.is_shared, ours.system_prompt) == (False, "For all")


# -- beginning with one


def test_empty_page_offers_ones_own_first_and_says_who_answers(owner: Client, alice: User, sam: User) -> None:
    ours, mine = keep(sam, "A shared one", shared=True), keep(alice, "Poet <b>", line="In verse & prose")
    page = owner.get("/").content.decode()
    assert page.index(f"/?persona={mine.pk}") < page.index(f"/?persona={ours.pk}")
    assert "You speak to" not in page
    chosen = owner.get(f"/?persona={mine.pk}").content.decode()
    assert "You speak to <strong>Poet &lt;b&gt;</strong> · In verse &amp; prose" in chosen
    assert f'class="chip on" href="/?persona={mine.pk}" aria-current="true"' in chosen
    assert f"/chat/temporary/?persona={mine.pk}" in chosen


def test_first_message_takes_the_settings_along_and_keeps_a_copy(
    owner: Client, alice: User, worker: StepWorker
) -> None:
    row = keep(alice, **SETTINGS)
    page = owner.get(f"/?persona={row.pk}").content
    sent = {**sent_by(page), "text": "Hello"}
    assert owner.post("/chat/", sent).status_code == 302
    begun = Conversation.objects.get()
    assert settings_of(begun) == SETTINGS
    request = worker.claim().claim.request
    assert "Answer in <b>rhymes</b>." in request.messages[0].content
    assert (request.sampling.temperature, request.sampling.max_tokens, request.thinking) == (0.25, 12, False)
    assert request.tools
    library.save(alice, row, system_prompt="Other", temperature=1.0)
    library.delete(alice, row.pk)
    begun.refresh_from_db()
    assert settings_of(begun) == SETTINGS


def test_refused_first_message_loses_neither_persona_nor_settings(owner: Client, alice: User) -> None:
    row = keep(alice, **SETTINGS)
    first = sent_by(owner.get(f"/?persona={row.pk}").content)
    refused = owner.post("/chat/", {**first, "text": "Hello", "temperature": "hot", "top_p": "0.75"})
    assert refused.status_code == 400
    again = sent_by(refused.content)
    for name in ("persona", *SETTINGS):
        assert again[name] == {**first, "temperature": "hot", "top_p": "0.75"}[name], name
    assert b"You speak to <strong>Poet</strong>" in refused.content
    assert owner.post("/chat/", {**again, "temperature": "0.5", "text": "Hello"}).status_code == 302
    assert settings_of(Conversation.objects.get()) == {**SETTINGS, "temperature": 0.5, "top_p": 0.75}


@pytest.mark.parametrize("address", ["/", "/chat/temporary/"])
@pytest.mark.parametrize("wanted", ["nonsense", "00000000-0000-7000-8000-000000000000", "another's"])
def test_persona_that_is_not_there_is_said_and_the_chat_begins_without(
    owner: Client, bob: User, address: str, wanted: str
) -> None:
    his = keep(bob, "his", system_prompt="secret")
    page = owner.get(address, {"persona": str(his.pk) if wanted == "another's" else wanted})
    assert page.status_code == 404
    assert "This persona is not there" in page.content.decode()
    assert b"secret" not in page.content
    assert 'id="composer"' in page.content.decode()


def test_persona_whose_model_is_away_says_so(owner: Client, alice: User) -> None:
    row = keep(alice)
    Persona.objects.update(model="gone")
    for address in ("/", "/chat/temporary/"):
        page = owner.get(address, {"persona": str(row.pk)}).content.decode()
        assert 'value="gone"' in page
    page = owner.get("/", {"persona": str(row.pk)}).content.decode()
    assert "gone (away)" in page
    assert "gone is not served now; Scripted answers." in page


def test_temporary_chat_is_answered_by_the_persona(owner: Client, alice: User, worker: StepWorker) -> None:
    row = keep(alice, **SETTINGS)
    page = owner.get("/chat/temporary/", {"persona": str(row.pk)}).content
    assert b"You speak to <strong>Poet</strong>" in page
    sent = {**sent_by(page), "text": "Hello"}
    assert owner.post("/chat/temporary/", {**sent, "tools": "on"}, headers=HX).status_code == 200
    request = worker.claim().claim.request
    assert "Answer in <b>rhymes</b>." in request.messages[0].content
    assert (request.model, request.sampling.top_p, request.thinking) == (MODEL, 0.5, False)
    assert request.tools == ()  # nobody could make their calls
    assert Generation.objects.get().source == "temporary"
    assert not Conversation.objects.exists()


def test_page_shows_the_first_dozen_and_the_chosen_one(owner: Client, alice: User) -> None:
    for number in range(MAX_SHOWN + 2):
        keep(alice, f"P{number:02}")
    page = owner.get("/").content.decode()
    assert page.count("?persona=") == MAX_SHOWN
    assert "2 more" in page
    last = Persona.objects.get(name=f"P{MAX_SHOWN + 1:02}")
    chosen = owner.get("/", {"persona": str(last.pk)}).content.decode()
    assert "1 more" in chosen
    assert f"You speak to <strong>{last.name}</strong>" in chosen


def test_offering_reads_no_instructions(alice: User, django_assert_num_queries: Any) -> None:
    """Each may be as long as a message, and the empty page is opened often."""
    row = keep(alice, system_prompt="x" * 100)
    keep(alice, "Other")
    with django_assert_num_queries(1) as queries:
        presets.beginning(alice)
    assert "system_prompt" not in queries.captured_queries[0]["sql"]
    with django_assert_num_queries(2):
        assert presets.beginning(alice, str(row.pk)).frame.system_prompt == "x" * 100
