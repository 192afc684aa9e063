"""An API key from its page to OpenAI's own client and to its end, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import openai
import pytest
from playwright.sync_api import Page

from tests.browser.steps import PASSWORD
from tests.fleet import MODEL, Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


def test_key_made_on_the_page_works_until_it_is_revoked(
    open_page: Callable[..., Page], live_site: Fleet, refusals: set[int]
) -> None:
    page = open_page()
    page.goto("/account/keys/")
    page.fill("#id_name", "My notebook")
    page.select_option("#id_days", "30")
    page.click("text=Make the key")
    page.fill("[name=password]", PASSWORD)
    page.click("main button[type=submit]")
    secret = page.input_value("#secret")
    assert f"{live_site.url}/v1/chat/completions" in page.inner_text("#example")
    with openai.OpenAI(base_url=f"{live_site.url}/v1", api_key=secret, max_retries=0) as client:
        assert MODEL in [model.id for model in client.models.list()]
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=4
        )
        assert answer.choices[0].message.content
        page.reload()
        page.wait_for_selector("li >> text=My notebook")
        assert page.locator("#secret").count() == 0
        assert page.locator(".list li").count() == 1
        assert "never" not in page.inner_text(".list li")  # it was used, and it expires
        page.click(".list >> text=Revoke")
        page.click("main button:has-text('Revoke')")
        page.wait_for_selector(".list .chip >> text=revoked")
        with pytest.raises(openai.AuthenticationError, match="revoked"):
            client.models.list()
    page.fill("#id_name", "Another")
    page.click("text=Make the key")  # the password was asked for a moment ago
    page.wait_for_selector("#secret")
    refusals.add(409)
    page.reload()
    page.wait_for_selector("[role=alert] >> text=was made already")
    assert page.locator("#secret").count() == 0
    assert page.locator(".list li").count() == 2
