"""The chip of a file whose encoding was guessed says which, and reads the bytes again in another."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.models import Attachment, Conversation
from tests.web.test_attachments import HX, upload

SAID = "Der Preis ist 5 € – „gut“."


def test_the_guess_stands_on_the_chip_and_what_needs_none_has_no_chip(owner: Client) -> None:
    page = owner.post("/chat/files/", upload("a.txt", SAID.encode("cp1252")), headers=HX).content.decode()
    assert "Read as Windows-1252" in page and "This is a guess" not in page
    row = Attachment.objects.get()
    assert (row.text, bytes(row.original or b"")) == (SAID, SAID.encode("cp1252"))
    assert "Read as Windows-1252" in owner.get(f"/chat/files/{row.pk}/").content.decode()
    page = owner.post("/chat/files/", upload("b.txt", b"gr\xfc\xdfe"), headers=HX).content.decode().split(">b.txt<")[1]
    assert "Read as Windows-1252" in page and "This is a guess. Check the text." in page
    page = owner.post("/chat/files/", upload("c.txt", "naïv".encode() + b"\xc3"), headers=HX).content.decode()
    assert "Some characters cannot be read" in page.split(">c.txt<")[1]
    page = (
        owner.post("/chat/files/", upload("d.txt", "grüße".encode()), headers=HX).content.decode().split(">d.txt<")[1]
    )
    assert "Read as" not in page
    assert Attachment.objects.get(name="d.txt").original is None


@pytest.mark.parametrize("headers", [HX, {}], ids=["htmx", "without a script"])
def test_another_encoding_reads_the_same_bytes_again(owner: Client, headers: dict[str, str]) -> None:
    owner.post("/chat/files/", upload("a.txt", "Łódź".encode("iso8859_2")), headers=HX)
    row = Attachment.objects.get()
    chosen = {f"codec-{row.pk}": "iso8859_2", "text": "typed words"}
    page = owner.post(f"/chat/files/{row.pk}/encoding/", chosen, headers=headers)
    assert page.status_code == 200
    assert "Read as ISO 8859-2" in page.content.decode()
    assert headers or "typed words" in page.content.decode()
    row.refresh_from_db()
    assert (row.text, row.codec, row.doubt) == ("Łódź", "iso8859_2", "")
    assert f'formaction="/chat/files/{row.pk}/encoding/"' in page.content.decode()


def test_an_encoding_that_does_not_fit_is_refused_and_changes_nothing(owner: Client) -> None:
    owner.post("/chat/files/", upload("<i>.txt", SAID.encode("cp1252")), headers=HX)
    row = Attachment.objects.get()
    for codec in ("utf_32_le", "rot13", "<b>"):
        page = owner.post(f"/chat/files/{row.pk}/encoding/", {f"codec-{row.pk}": codec})
        assert page.status_code == 400
        assert (
            "is no text in the encoding" in page.content.decode()
            and "“&lt;i&gt;.txt” is no text" in page.content.decode()
        )
    row.refresh_from_db()
    assert (row.text, row.codec) == (SAID, "cp1252")


def test_bytes_go_when_the_file_is_sent_and_nobody_else_reads_them(
    owner: Client, alice: User, bob: User, conversation: Conversation
) -> None:
    owner.post(f"/chat/{conversation.pk}/files/", upload("a.txt", SAID.encode("cp1252")), headers=HX)
    row = Attachment.objects.get()
    stranger = Client()
    stranger.force_login(bob)
    assert stranger.post(f"/chat/files/{row.pk}/encoding/", {f"codec-{row.pk}": "cp1251"}).status_code == 404
    send.send_message(alice, conversation, "hi", attachments=[row.pk])
    row.refresh_from_db()
    assert (row.original, row.codec) == (None, "cp1252")
    assert owner.post(f"/chat/files/{row.pk}/encoding/", {f"codec-{row.pk}": "cp1251"}).status_code == 404
    assert "Read as Windows-1252" in owner.get(f"/chat/{conversation.pk}/").content.decode()


def test_several_files_are_guessed_each_by_itself(owner: Client) -> None:
    said = {"a.txt": ("今天天气很好，我们去公园散步吧。", "gb18030"), "b.txt": ("今日は東京に行きました。", "cp932")}
    files = [SimpleUploadedFile(name, text.encode(codec)) for name, (text, codec) in said.items()]
    owner.post("/chat/files/", {"file": files}, headers=HX)
    assert {row.name: (row.text, row.codec) for row in Attachment.objects.all()} == said
