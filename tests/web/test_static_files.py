"""Static files: plain names while nothing is collected, hashed and kept for ever afterwards; headers of every page."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import LazySettings
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management import call_command
from django.test import Client

from chatsite.management.commands.prepare import collect_static
from chatsite.static_files import HashedStaticFiles


@pytest.fixture
def collected(settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Collected into a directory of this test, and a storage that reads the manifest there."""
    settings.STATIC_ROOT = tmp_path
    monkeypatch.setattr(staticfiles_storage, "_wrapped", HashedStaticFiles(location=str(tmp_path)))
    call_command("collectstatic", verbosity=0, interactive=False)
    return tmp_path


def test_names_are_plain_and_served_without_collecting(client: Client) -> None:
    url = staticfiles_storage.url("css/app.css")
    assert url == "/static/css/app.css"
    response = client.get(url)
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/css")
    assert "Access-Control-Allow-Origin" not in response
    assert client.get(url, headers={"if-none-match": response["ETag"]}).status_code == 304


def test_collected_names_carry_a_hash_and_may_be_kept_for_ever(collected: Path, client: Client) -> None:
    url = staticfiles_storage.url("css/app.css")
    assert url.startswith("/static/css/app.")
    assert url != "/static/css/app.css"
    response = client.get(url)
    assert response.status_code == 200
    assert "immutable" in response["Cache-Control"]


def test_collecting_twice_does_nothing_the_second_time(settings: LazySettings, tmp_path: Path) -> None:
    settings.STATIC_ROOT = tmp_path
    assert collect_static() is True
    assert collect_static() is False


@pytest.mark.django_db
def test_pages_carry_a_strict_policy(client: Client) -> None:
    response = client.get("/accounts/login/")
    policy = dict(part.strip().split(" ", 1) for part in response["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert response["X-Frame-Options"] == "DENY"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Referrer-Policy"] == "same-origin"
