// Small things around the chat: theme, drawer, copying, scrolling, the status region, and what to say when a request fails.
const NEAR_BOTTOM_PX = 48;
const on = addEventListener;
const byId = (id) => document.getElementById(id);
const words = document.body.dataset;

// The system's theme, light, dark, and again.
function nextTheme() {
  const root = document.documentElement.dataset;
  root.theme = localStorage.theme = { light: "dark", dark: "system" }[root.theme] || "light";
}

// -- saying --
const announce = (said) => byId("announcer")?.replaceChildren(said);

function refuse(why) {
  const line = document.createElement("p");
  Object.assign(line, { className: "err", role: "alert", textContent: why });
  byId("refusal")?.replaceChildren(line);
}

// -- scrolling: only while the reader is at the bottom --
const log = () => byId("log");
let isPinned = true;
let lastTop = 0;

function isAtBottom() {
  const { scrollHeight, scrollTop, clientHeight } = log();
  return scrollHeight - scrollTop - clientHeight < NEAR_BOTTOM_PX;
}

const showNewer = (isShown) => (htmx.find(".newer").hidden = !isShown);

function toBottom() {
  const found = log();
  if (!found) return;
  isPinned = true;
  found.scrollTop = found.scrollHeight;
  lastTop = found.scrollTop;
  showNewer(false);
}

on("scroll", ({ target }) => {
  if (target !== log()) return;
  if (isAtBottom()) isPinned = true;
  else if (target.scrollTop < lastTop - 2) isPinned = false; // the reader went up
  lastTop = target.scrollTop;
  if (isPinned) showNewer(false);
}, true);

on("wheel", ({ deltaY, target }) => {
  if (deltaY < 0 && log()?.contains(target)) isPinned = false;
}, { passive: true });

// Who opens a thought wants to read it, not to follow the answer.
on("toggle", ({ target }) => {
  if (log()?.contains(target)) isPinned = isAtBottom();
}, true);

on("answer:grew", () => {
  if (isPinned) toBottom();
  else showNewer(true);
});
on("answer:began", () => {
  announce(words.writing);
  toBottom();
});
on("answer:ended", ({ detail }) => announce(words[detail.status]));

// -- copying --
async function copy(button, text) {
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    isCopied = copyOldWay(text);
  }
  const label = (button.dataset.label ||= button.textContent);
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
on("copy", (event) => {
  const holder = document.createElement("div");
  holder.className = "sr";
  if (getSelection().rangeCount) holder.append(getSelection().getRangeAt(0).cloneContents());
  if (!holder.querySelector("math")) return;
  for (const math of holder.querySelectorAll("math")) math.replaceWith(math.querySelector("annotation")?.textContent || "");
  document.body.append(holder);
  event.clipboardData.setData("text/plain", holder.innerText);
  event.preventDefault();
  holder.remove();
});

// -- the list --
function markCurrent() {
  const current = byId("chat")?.dataset.conversation;
  for (const row of htmx.findAll("#rows .row")) {
    const isOn = row.id === `c-${current}`;
    row.classList.toggle("on", isOn);
    row.querySelector("a.t").ariaCurrent = isOn ? "page" : null;
  }
}

function drawer(isOpen) {
  const rail = byId("rail");
  if (!rail) return;
  rail.classList.toggle("open", isOpen);
  htmx.find(".burger")?.setAttribute("aria-expanded", isOpen);
  if (isOpen) rail.querySelector("a, button").focus();
}

// -- clicks and keys --
on("click", ({ target }) => {
  for (const menu of htmx.findAll("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
  const button = target.closest("[data-act]");
  const act = button?.dataset.act;
  const rail = byId("rail");
  const isOpen = rail?.classList.contains("open");
  if (act === "drawer") drawer(!isOpen);
  else if (isOpen && (!rail.contains(target) || target.closest("a"))) drawer(false);
  const figure = button?.closest("figure.code");
  if (act === "theme") nextTheme();
  if (act === "bottom") toBottom();
  if (act === "wrap") button.ariaPressed = figure.classList.toggle("wrap");
  if (act === "unfold") figure.classList.add("open");
  if (act === "copy-code") copy(button, figure.querySelector("code").textContent);
  if (act === "copy") copy(button, button.dataset.text ?? sourceOf(button.closest("article")));
});

on("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = htmx.find("details.menu[open]");
  if (menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
    event.preventDefault();
  }
  drawer(false);
});

// Signing out leaves no draft behind; a session that only expired does.
on("submit", ({ target }) => {
  if (!target.matches("[action$='/logout/']")) return;
  for (const name of Object.keys(localStorage)) if (name.startsWith("draft:")) delete localStorage[name];
});

// -- htmx --
on("htmx:configRequest", ({ detail }) => {
  // The cookie is newer than the page when somebody signed in elsewhere meanwhile.
  const cookie = /(?:^|; )(?:__Host-)?csrftoken=([^;]+)/.exec(document.cookie);
  const token = cookie?.[1] || htmx.find("[name=csrfmiddlewaretoken]")?.value;
  if (token && detail.verb !== "get") detail.headers["X-CSRFToken"] = token;
});
on("htmx:responseError", ({ detail: { xhr: { status } } }) => {
  if (status === 401) return; // on the way to the sign-in
  refuse({ 403: words.stale, 404: words.missing }[status] || words.broken.replace("{n}", status));
});
for (const name of ["htmx:sendError", "htmx:timeout"]) on(name, ({ target }) => target !== document.body && refuse(words.unreached));
// Whoever was in what is drawn anew stays near it.
let place = null;
for (const name of ["htmx:beforeSwap", "htmx:oobBeforeSwap"]) on(name, ({ detail: { target, shouldSwap } }) => {
  const { activeElement } = document;
  if (shouldSwap && target.contains(activeElement) && activeElement.id !== "text") place = activeElement.closest(".row, #tune")?.id || "log";
});
on("htmx:afterSettle", ({ detail: { target } }) => {
  if (place && document.activeElement === document.body) (htmx.find(`#${place} > :is(.t, summary)`) || log())?.focus({ preventScroll: true });
  place = null;
  markCurrent();
  if (target?.id === "chat" || target?.id === "log") {
    drawer(false);
    toBottom();
  }
});

on("DOMContentLoaded", toBottom);
