// Small things around the chat: theme, drawer, copying, scrolling, the status region, and what to say when a request fails.
(() => {
  "use strict";

  const NEAR_BOTTOM_PX = 48;
  const THEMES = ["system", "light", "dark"];
  const words = document.body.dataset;

  // -- theme ---------------------------------------------------------------------------------------------------------
  function theme() {
    return document.documentElement.dataset.theme || "system";
  }

  function showTheme() {
    for (const name of document.querySelectorAll("[data-theme-name]")) name.textContent = words[theme()];
    for (const button of document.querySelectorAll(".btn[data-act=theme]")) button.setAttribute("aria-label", `${words.theme}: ${words[theme()]}`);
  }

  function nextTheme() {
    const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === "system") localStorage.removeItem("theme");
      else localStorage.setItem("theme", next);
    } catch { /* it holds for this page */ }
    showTheme();
  }

  // -- saying --------------------------------------------------------------------------------------------------------
  function announce(said) {
    const region = document.getElementById("announcer");
    if (region) region.textContent = said;
  }

  function refuse(why) {
    const place = document.getElementById("refusal");
    if (!place) return;
    const line = document.createElement("p");
    line.className = "err";
    line.setAttribute("role", "alert");
    line.textContent = why;
    place.replaceChildren(line);
  }

  // -- scrolling: follow only while the reader is at the bottom ---------------------------------------------------------
  const log = () => document.getElementById("log");
  let isPinned = true;
  let lastTop = 0;

  function isAtBottom(found) {
    return found.scrollHeight - found.scrollTop - found.clientHeight < NEAR_BOTTOM_PX;
  }

  function showNewer(isShown) {
    const button = document.querySelector(".newer");
    if (button) button.hidden = !isShown;
  }

  function toBottom() {
    const found = log();
    if (!found) return;
    isPinned = true;
    found.scrollTop = found.scrollHeight;
    lastTop = found.scrollTop;
    showNewer(false);
  }

  document.addEventListener("scroll", (event) => {
    const found = log();
    if (event.target !== found) return;
    if (found.scrollTop < lastTop - 2) isPinned = isAtBottom(found); // the reader went up
    else if (isAtBottom(found)) isPinned = true;
    lastTop = found.scrollTop;
    if (isPinned) showNewer(false);
  }, true);

  document.addEventListener("wheel", (event) => {
    if (event.deltaY < 0 && log()?.contains(event.target)) isPinned = false;
  }, { passive: true });

  // Who opens a thought wants to read it, not to follow the answer.
  document.addEventListener("toggle", (event) => {
    if (log()?.contains(event.target)) isPinned = isAtBottom(log());
  }, true);

  document.addEventListener("answer:grew", () => {
    if (isPinned) toBottom();
    else showNewer(true);
  });
  document.addEventListener("answer:began", (event) => {
    announce(words.writing);
    if (event.target.closest("#log")) toBottom();
  });
  document.addEventListener("answer:ended", (event) => {
    announce(words[event.detail.status]);
  });

  // -- copying -------------------------------------------------------------------------------------------------------
  async function copy(button, text) {
    let isCopied = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      isCopied = copyOldWay(text);
    }
    const label = button.dataset.label || button.textContent;
    button.dataset.label = label;
    announce((button.textContent = isCopied ? words.copied : words.notCopied));
    setTimeout(() => (button.textContent = label), 1600);
  }

  const sourceOf = (article) => (article.querySelector("template.source")?.content || article.querySelector(".typed")).textContent;

  function copyOldWay(text) {
    // Without a secure origin there is no clipboard interface.
    const holder = document.createElement("textarea");
    holder.className = "sr";
    holder.value = text;
    document.body.append(holder);
    holder.select();
    const isCopied = document.execCommand("copy");
    holder.remove();
    return isCopied;
  }

  // A copied formula is its source.
  document.addEventListener("copy", (event) => {
    const range = getSelection().rangeCount && getSelection().getRangeAt(0);
    const holder = document.createElement("div");
    if (!range || !range.cloneContents().querySelector("math")) return;
    holder.className = "sr";
    holder.append(range.cloneContents());
    for (const math of holder.querySelectorAll("math")) math.replaceWith(math.querySelector("annotation")?.textContent || "");
    document.body.append(holder);
    event.clipboardData.setData("text/plain", holder.innerText);
    event.preventDefault();
    holder.remove();
  });

  // -- the list of conversations -----------------------------------------------------------------------------------------
  function markCurrent() {
    const current = document.getElementById("chat")?.dataset.conversation;
    for (const row of document.querySelectorAll("#rows .row")) {
      const isOn = row.id === `c-${current}`;
      row.classList.toggle("on", isOn);
      if (isOn) row.querySelector("a.t").setAttribute("aria-current", "page");
      else row.querySelector("a.t").removeAttribute("aria-current");
    }
  }

  function drawer(isOpen) {
    const rail = document.getElementById("rail");
    if (!rail) return;
    rail.classList.toggle("open", isOpen);
    document.querySelector(".burger")?.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) rail.querySelector("a, button")?.focus();
  }

  // -- clicks and keys ---------------------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
    const rail = document.getElementById("rail");
    const button = event.target.closest?.("[data-act]");
    if (rail?.classList.contains("open") && (!rail.contains(event.target) || event.target.closest("a"))) {
      if (button?.dataset.act !== "drawer") drawer(false);
    }
    if (!button) return;
    const figure = button.closest("figure.code");
    switch (button.dataset.act) {
      case "theme": return nextTheme();
      case "drawer": return drawer(!rail.classList.contains("open"));
      case "bottom": return toBottom();
      case "wrap": return void button.setAttribute("aria-pressed", String(figure.classList.toggle("wrap")));
      case "unfold": return figure.classList.add("open");
      case "copy-code": return void copy(button, figure.querySelector("code").textContent);
      case "copy": return void copy(button, button.dataset.text ?? sourceOf(button.closest("article")));
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      const menu = document.querySelector("details.menu[open]");
      if (menu) {
        menu.open = false;
        menu.querySelector("summary").focus();
        event.preventDefault();
      }
      drawer(false);
    }
  });

  // Signing out leaves no draft behind; a session that only expired does.
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[action$='/logout/']")) return;
    for (const name of Object.keys(localStorage)) if (name.startsWith("draft:")) localStorage.removeItem(name);
  });

  // -- htmx ----------------------------------------------------------------------------------------------------------------
  document.addEventListener("htmx:configRequest", (event) => {
    // The cookie is newer than the page when somebody signed in elsewhere meanwhile.
    const cookie = /(?:^|; )(?:__Host-)?csrftoken=([^;]+)/.exec(document.cookie);
    const token = cookie?.[1] || document.querySelector("[name=csrfmiddlewaretoken]")?.value;
    if (token && event.detail.verb !== "get") event.detail.headers["X-CSRFToken"] = token;
  });
  document.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    if (status === 401) return; // on the way to the sign-in
    refuse({ 403: words.stale, 404: words.missing }[status] || words.broken.replace("{n}", status));
  });
  for (const name of ["htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(name, () => refuse(words.unreached));
  }
  // Whoever was in what is drawn anew stays near it.
  let place = null;
  document.addEventListener("htmx:beforeSwap", ({ detail: { target, shouldSwap } }) => {
    const { activeElement } = document;
    if (shouldSwap && target.contains(activeElement) && activeElement.id !== "text") place = activeElement.closest(".row")?.id || "log";
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (place && document.activeElement === document.body) (document.querySelector(`#${place} .t`) || log())?.focus({ preventScroll: true });
    place = null;
    markCurrent();
    showTheme();
    if (event.detail.target?.id === "chat" || event.detail.target?.id === "log") {
      drawer(false);
      toBottom();
    }
  });

  function begin() {
    showTheme();
    toBottom();
  }
  document.addEventListener("DOMContentLoaded", begin);
  if (document.readyState !== "loading") begin();
})();
