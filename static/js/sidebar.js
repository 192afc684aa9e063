// The list of conversations: asked for anew at the server's hints; what is in sight is seen; keys of search; its finds.
// A hidden tab keeps no connection, for a browser has few. Shown again it connects, and the first word there is to look.
(() => {
  "use strict";

  const GATHER_MS = 120;
  const MAX_DELAY_MS = 30000;
  const by = (id) => document.getElementById(id);
  let source = null;
  let timer = 0;
  let failures = 0;
  let planned = 0;
  let isLate = false; // a hint came while somebody was at work in the list
  let sought = "";

  function connect() {
    clearTimeout(timer);
    source?.close();
    source = null;
    const url = by("rail")?.dataset.live;
    if (!url || document.hidden) return;
    source = new EventSource(url);
    for (const name of ["row", "stale"]) {
      source.addEventListener(name, () => {
        failures = 0;
        plan();
      });
    }
    source.addEventListener("again", connect);
    source.onerror = () => {
      source.close();
      timer = setTimeout(connect, Math.min(MAX_DELAY_MS, 1000 * 2 ** failures++) * (0.6 + 0.8 * Math.random()));
    };
  }

  function plan() {
    planned ||= setTimeout(refresh, GATHER_MS);
  }

  async function refresh() {
    planned = 0;
    const rows = by("rows");
    if (!rows || document.hidden) return;
    isLate = Boolean(rows.querySelector("details[open]") || by("selecting")?.checked);
    if (isLate) return;
    const { scrollTop, dataset } = rows;
    const count = rows.querySelectorAll(".row").length;
    const url = `/chat/sidebar/?${dataset.list}&count=${count}&digest=${dataset.digest}`;
    await window.htmx.ajax("GET", url, { target: "#rows", swap: "outerHTML" });
    if (by("rows") !== rows) by("rows").scrollTop = scrollTop;
    if (document.querySelector("#rows .row.on .unread")) see();
  }

  function see() {
    const open = by("chat")?.dataset.conversation;
    if (!open || document.hidden) return;
    window.htmx.ajax("POST", `/chat/${open}/arrange/`, { swap: "none", values: { verb: "read" } });
  }

  function find(id) {
    const message = by(id);
    if (!message) return;
    document.querySelector(".msg.hit")?.classList.remove("hit");
    message.classList.add("hit");
    message.tabIndex = -1;
    message.focus({ preventScroll: true });
    const texts = document.createTreeWalker(message, NodeFilter.SHOW_TEXT);
    while (sought && texts.nextNode() && !texts.currentNode.data.includes(sought));
    (texts.currentNode?.parentElement.closest(`#${id} *`) || message).scrollIntoView({ block: "center" });
  }

  function begin() {
    if (location.hash.startsWith("#m-")) find(location.hash.slice(1));
  }

  document.addEventListener("keydown", (event) => {
    const box = event.target;
    if (box.id !== "search" || event.isComposing) return;
    const hits = [...(by("hits")?.children || [])];
    const at = hits.findIndex((hit) => hit.ariaSelected === "true");
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && hits.length) {
      const next = hits.at((at + (at < 0 && step < 0 ? 0 : step)) % hits.length);
      hits.forEach((hit) => (hit.ariaSelected = String(hit === next)));
      next.scrollIntoView({ block: "nearest" });
      box.setAttribute("aria-activedescendant", next.id);
    } else if (event.key === "Enter" && by("hits")?.dataset.typed === box.value.trim()) {
      hits[Math.max(0, at)].click();
    } else if (event.key === "Escape" && box.value) {
      box.value = "";
      by("found").replaceChildren();
      box.ariaExpanded = "false";
      event.stopPropagation();
    } else return;
    event.preventDefault();
  });

  document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
    if (target?.matches("#rows .sheet")) target.scrollIntoView({ block: "nearest" });
    if (target?.id !== "found") return;
    by("search").ariaExpanded = String(Boolean(by("hits")));
    by("search").removeAttribute("aria-activedescendant");
  });
  document.addEventListener("rows:changed", (event) => {
    if (event.target.closest?.("#rail")) {
      for (const menu of document.querySelectorAll("#rows details[open]")) menu.open = false;
      by("selecting").checked = false;
    }
    plan();
  });
  document.addEventListener("click", (event) => {
    sought = event.target.closest?.(".hit-link")?.querySelector(".said mark")?.textContent || sought;
    if (event.target.dataset?.act !== "unsure") return;
    event.preventDefault();
    event.target.closest(".sure").remove();
  });
  document.addEventListener("message:found", (event) => find(event.detail.id));
  document.addEventListener("answer:began", plan);
  document.addEventListener("answer:ended", see);
  for (const name of ["toggle", "change"]) document.addEventListener(name, () => isLate && plan(), true);
  document.addEventListener("visibilitychange", connect);
  window.addEventListener("online", connect);
  window.addEventListener("pageshow", (event) => event.persisted && connect());
  window.addEventListener("pagehide", () => source?.close());
  document.addEventListener("DOMContentLoaded", begin);
  connect();
})();
