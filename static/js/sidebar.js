// The list of conversations: asked for anew at the server's hints; what is in sight is seen; search.
// A hidden tab keeps no connection, for a browser has few. Shown again it connects, and the first word there is to look.
const GATHER_MS = 120;
const MAX_DELAY_MS = 30000;
const on = addEventListener;
const byId = (id) => document.getElementById(id);
const ajax = (...request) => htmx.ajax(...request).catch(() => {}); // away: it looks again later
let source = null;
let timer = 0;
let failures = 0;
let planned = 0;
let isLate = false; // a hint came while somebody was at work in the list
let sought = "";

function connect() {
  clearTimeout(timer);
  source?.close();
  if (document.hidden) return;
  source = new EventSource(byId("rail").dataset.live);
  source.onopen = () => (failures = 0);
  for (const name of ["row", "stale"]) source.addEventListener(name, plan);
  source.addEventListener("again", connect);
  source.onerror = () => {
    if (source.readyState > 1) plan(); // refused: the list says whether we are signed out
    source.close();
    timer = setTimeout(connect, Math.min(MAX_DELAY_MS, 1000 * 2 ** failures++) * (0.6 + 0.8 * Math.random()));
  };
}

function plan() {
  planned ||= setTimeout(refresh, GATHER_MS);
}

async function refresh() {
  planned = 0;
  const rows = byId("rows");
  if (document.hidden) return;
  isLate = Boolean(rows.querySelector("details[open]") || byId("selecting").checked);
  if (isLate) return;
  const { scrollTop, dataset } = rows;
  const count = rows.querySelectorAll(".row").length;
  const url = `/chat/sidebar/?${dataset.list}&count=${count}&digest=${dataset.digest}`;
  await ajax("GET", url, { target: "#rows", swap: "outerHTML" });
  if (byId("rows") !== rows) byId("rows").scrollTop = scrollTop;
  if (htmx.find("#rows .row.on .unread")) see();
}

function see() {
  const open = byId("chat").dataset.conversation;
  if (!open || document.hidden) return;
  ajax("POST", `/chat/${open}/arrange/`, { swap: "none", values: { verb: "read" } });
}

function find(id) {
  const message = byId(id);
  if (!message) return;
  htmx.find(".msg.hit")?.classList.remove("hit");
  message.classList.add("hit");
  message.tabIndex = -1;
  message.focus({ preventScroll: true });
  const texts = document.createTreeWalker(message, NodeFilter.SHOW_TEXT);
  while (sought && texts.nextNode() && !texts.currentNode.data.includes(sought));
  (texts.currentNode?.parentElement.closest(`#${id} *`) || message).scrollIntoView({ block: "center" });
}

on("keydown", (event) => {
  const box = event.target;
  if (box.id !== "search" || event.isComposing) return;
  const hits = [...htmx.findAll("#hits > *")];
  const at = hits.findIndex((hit) => hit.ariaSelected === "true");
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && hits.length) {
    const next = hits.at((at + (at < 0 && step < 0 ? 0 : step)) % hits.length);
    hits.forEach((hit) => (hit.ariaSelected = hit === next));
    next.scrollIntoView({ block: "nearest" });
    box.setAttribute("aria-activedescendant", next.id);
  } else if (event.key === "Enter" && byId("hits")?.dataset.typed === box.value.trim()) {
    hits[Math.max(0, at)].click();
  } else if (event.key === "Escape" && box.value) {
    box.value = "";
    byId("found").replaceChildren();
    box.ariaExpanded = "false";
  } else return;
  event.preventDefault();
});

on("htmx:beforeSwap", ({ detail }) => {
  if (detail.target.id !== "rows" || !htmx.find("#rows details[open]")) return;
  detail.shouldSwap = false;
  isLate = true; // opened since it was asked for
});
on("htmx:afterSwap", ({ detail: { target } }) => {
  if (target?.matches("#rows .sheet")) target.scrollIntoView({ block: "nearest" });
  if (target?.id !== "found") return;
  byId("search").ariaExpanded = Boolean(byId("hits"));
  byId("search").removeAttribute("aria-activedescendant");
});
on("rows:changed", ({ target }) => {
  if (target.closest?.("#rail")) {
    for (const menu of htmx.findAll("#rows details[open]")) menu.open = false;
    byId("selecting").checked = false;
  }
  plan();
});
on("click", (event) => {
  sought = event.target.closest(".hit-link")?.querySelector(".said mark")?.textContent || sought;
  if (event.target.dataset.act !== "unsure") return;
  event.preventDefault();
  event.target.closest(".sure").remove();
});
on("message:found", ({ detail }) => find(detail.id));
on("answer:began", plan);
on("answer:ended", see);
for (const name of ["toggle", "change"]) on(name, () => isLate && plan(), true);
for (const name of ["visibilitychange", "online", "pageshow"]) on(name, connect);
on("pagehide", () => source?.close());
on("DOMContentLoaded", () => location.hash.startsWith("#m-") && find(location.hash.slice(1)));
