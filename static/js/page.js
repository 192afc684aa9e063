// Small things around the chat: theme, drawer, copying, scrolling, the status region, and what to say when a request fails.
(() => {
  "use strict";

  const NEAR_BOTTOM_PX = 48;
  const REFRESH_MS = 8000; // of the list, while another conversation is still being written
  const THEMES = ["system", "light", "dark"];

  // -- theme ---------------------------------------------------------------------------------------------------------
  function theme() {
    return document.documentElement.dataset.theme || "system";
  }

  function showTheme() {
    for (const name of document.querySelectorAll("[data-theme-name]")) name.textContent = theme();
    for (const button of document.querySelectorAll(".btn[data-act=theme]")) button.setAttribute("aria-label", `Theme: ${theme()}`);
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
  function announce(words) {
    const region = document.getElementById("announcer");
    if (region) region.textContent = words;
  }

  function refuse(words) {
    const place = document.getElementById("refusal");
    if (!place) return;
    const line = document.createElement("p");
    line.className = "err";
    line.setAttribute("role", "alert");
    line.textContent = words;
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

  document.addEventListener("answer:grew", () => {
    if (isPinned) toBottom();
    else showNewer(true);
  });
  document.addEventListener("answer:began", (event) => {
    announce("Answer is being written");
    if (event.target.closest("#log")) toBottom();
  });
  document.addEventListener("answer:ended", (event) => {
    announce({ done: "Answer ready", stopped: "Answer stopped", failed: "The answer failed" }[event.detail.status]);
    refreshRows();
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
    button.textContent = isCopied ? "Copied" : "Not allowed";
    announce(isCopied ? "Copied" : "Copying is not allowed here");
    setTimeout(() => (button.textContent = label), 1600);
  }

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

  function refreshRows() {
    const rows = document.getElementById("rows");
    const isInUse = rows?.querySelector("details[open]") || rows?.contains(document.activeElement);
    const isLong = (rows?.querySelectorAll(".row").length || 0) > 50; // following pages were loaded: leave them
    if (!rows || isInUse || isLong || document.hidden) return;
    window.htmx.ajax("GET", "/chat/sidebar/", { target: "#rows", swap: "outerHTML" });
  }

  setInterval(() => {
    if (document.querySelector("#rows .live")) refreshRows();
  }, REFRESH_MS);

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
      case "copy-code": return void copy(button, figure.querySelector("code").textContent);
      case "copy": return void copy(button, button.closest("article").querySelector("template.source").content.textContent);
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
    if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
      event.preventDefault();
      document.querySelector("[data-shortcut=new]")?.click();
    }
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
    refuse(status === 403 ? "This page is out of date. Load it again; your text is kept." : status === 404 ? "It is no longer there." : `The site answered with an error (${status}). Your text is kept; try again.`);
  });
  for (const name of ["htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(name, () => refuse("The site cannot be reached. Your text is kept; try again."));
  }
  document.addEventListener("htmx:afterSettle", (event) => {
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
