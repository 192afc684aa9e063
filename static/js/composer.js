// The message box: keys, size, draft, the key of one press of Send, and its state while an answer is being written.
//
// Works by delegation, because htmx may replace the form at any time. The server alone decides what is accepted.
(() => {
  "use strict";

  const MAX_HEIGHT_SHARE = 0.4; // of the window
  const isTouch = matchMedia("(pointer: coarse)").matches;

  const form = () => document.getElementById("composer");
  const box = () => document.getElementById("text");
  const draftName = (found) => `draft:${found.dataset.draft}`;
  let sentText = null; // what was last sent with the key now in the form

  function fit() {
    const text = box();
    if (!text) return;
    text.rows = 1;
    const style = getComputedStyle(text);
    const line = parseFloat(style.lineHeight) || 24;
    const room = Math.max(1, Math.floor((window.innerHeight * MAX_HEIGHT_SHARE) / line));
    const padding = parseFloat(style.paddingTop) + parseFloat(style.paddingBottom);
    text.rows = Math.min(room, Math.max(1, Math.round((text.scrollHeight - padding) / line)));
  }

  function remember() {
    const found = form();
    if (!found) return;
    try {
      if (box().value) sessionStorage.setItem(draftName(found), box().value);
      else sessionStorage.removeItem(draftName(found));
    } catch { /* storage is full or blocked: the text is still in the box */ }
  }

  function forget(name) {
    try {
      sessionStorage.removeItem(name);
    } catch { /* as above */ }
  }

  function newKey() {
    if (crypto.randomUUID) return crypto.randomUUID();
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    return hex.replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
  }

  const isBusy = () => document.querySelector("#turns article[data-generation]") !== null;

  function update() {
    const found = form();
    if (!found) return;
    found.toggleAttribute("data-busy", isBusy());
    found.querySelector(".send").disabled = isBusy() || !box().value.trim();
    fit();
  }

  function begin() {
    const found = form();
    if (!found || found.dataset.ready) return update();
    found.dataset.ready = "yes";
    sentText = null;
    try {
      if (!box().value) box().value = sessionStorage.getItem(draftName(found)) || "";
    } catch { /* no draft then */ }
    if (!isTouch && !document.activeElement?.matches("input, textarea, select")) box().focus({ preventScroll: true });
    update();
  }

  function halt() {
    const stop = document.querySelector("#turns article[data-generation] .status form");
    if (!stop) return false;
    stop.requestSubmit();
    stop.querySelector("button").disabled = true;
    stop.closest(".status").querySelector(".now").textContent = "Stopping";
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("details.menu[open]")) {
      if (event.shiftKey) box()?.focus();
      else if (halt()) event.preventDefault();
      return;
    }
    if (event.target !== box() || event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    if (isTouch && !event.ctrlKey && !event.metaKey) return; // there Enter is a new line
    event.preventDefault();
    if (!event.repeat && !form().querySelector(".send").disabled) form().requestSubmit();
  });

  document.addEventListener("input", (event) => {
    if (event.target !== box()) return;
    remember();
    update();
  });

  document.addEventListener("htmx:configRequest", (event) => {
    if (event.target !== form()) return;
    const text = box().value;
    if (sentText !== null && sentText !== text) {
      // The press before may have been taken without our hearing of it: another text is another message.
      form().querySelector("#key").value = newKey();
      event.detail.parameters.set?.("key", form().querySelector("#key").value);
    }
    sentText = text;
    document.getElementById("refusal").replaceChildren();
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target === form()) form().classList.add("sending");
  });

  document.addEventListener("htmx:afterRequest", (event) => {
    const sender = event.target;
    if (sender?.id !== "composer") return;
    sender.classList.remove("sending");
    if (event.detail.successful) {
      const typed = sender.querySelector("textarea[name=text]");
      if (typed.value === sentText) {
        typed.value = "";
        forget(draftName(sender));
      }
      sentText = null;
      document.getElementById("empty")?.remove();
    }
    begin();
  });

  document.addEventListener("click", (event) => {
    const act = event.target.closest?.("[data-act]")?.dataset.act;
    if (act === "halt") halt();
    if (act === "starter") {
      box().value = event.target.closest("[data-act]").textContent.trim();
      box().focus();
      remember();
      update();
    }
  });

  for (const name of ["htmx:afterSettle", "answer:began", "answer:ended"]) document.addEventListener(name, begin);
  document.addEventListener("DOMContentLoaded", begin);
  window.addEventListener("resize", fit);
  if (document.readyState !== "loading") begin();
})();
