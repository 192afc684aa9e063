"""What a browser asks for to install the site: valid, open to everybody, and nothing in it of anybody's."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

pytestmark = pytest.mark.django_db


def test_manifest_is_one_that_browsers_install(site: Callable[..., None]) -> None:
    site(site_name='Ada & "Co" Chat of the Analytical Society')
    answer = Client().get("/manifest.webmanifest")
    assert answer["Content-Type"] == "application/manifest+json"
    manifest = answer.json()
    assert manifest["name"] == 'Ada & "Co" Chat of the Analytical Society'
    assert len(manifest["short_name"]) <= 12
    assert (manifest["start_url"], manifest["scope"], manifest["display"]) == ("/", "/", "standalone")
    assert re.fullmatch("#[0-9a-f]{6}", manifest["theme_color"])
    assert {icon["purpose"] for icon in manifest["icons"]} == {"any", "maskable"}
    for icon in manifest["icons"]:
        path = finders.find(icon["src"].removeprefix("/static/"))
        assert path, icon
        if icon["type"] == "image/png":
            with open(path, "rb") as file:
                head = file.read(24)
            assert head[:8] == b"\x89PNG\r\n\x1a\n"
            assert "x".join(map(str, struct.unpack(">II", head[16:]))) == icon["sizes"]


def test_every_page_names_manifest_icon_and_colours(client: Client, redis: Any) -> None:
    page = client.get("/accounts/login/").content.decode()
    for wanted in ('rel="manifest"', 'rel="apple-touch-icon"', 'name="theme-color"'):
        assert wanted in page


def test_service_worker_and_manifest_are_allowed_by_the_policy(client: Client, redis: Any) -> None:
    policy = client.get("/accounts/login/")["Content-Security-Policy"]
    assert "worker-src 'self'" in policy
    assert "manifest-src 'self'" in policy


def test_service_worker_comes_fresh_from_the_root_and_keeps_only_what_anybody_may_see(client: Client) -> None:
    answer = client.get("/sw.js")
    assert answer["Content-Type"].startswith("text/javascript")
    assert "no-store" in answer["Cache-Control"]
    kept = re.search(r"const KEPT = \[(.*)\]", answer.content.decode())
    assert kept
    addresses = re.findall(r'"([^"]+)"', kept[1])
    assert addresses[0] == "/offline/"
    for address in addresses:
        assert client.get(address).status_code == 200, address


def test_offline_page_needs_nobody_and_nothing_that_is_not_kept(client: Client) -> None:
    page = client.get("/offline/").content.decode()
    assert "What you typed is kept" in page
    kept = client.get("/sw.js").content.decode()
    for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        assert f'"{address}"' in kept
