// The message box: keys, draft, the key of one press of Send, and the queue above it.
//
// Works by delegation, because htmx may replace the form at any time. The server alone decides what is accepted.
(() => {
  "use strict";

  const DRAFT_MS = 250; // after the last key: a long text costs something to keep
  const isTouch = matchMedia("(pointer: coarse)").matches;

  const form = () => document.getElementById("composer");
  const box = () => document.getElementById("text");
  const queue = () => document.getElementById("queue");
  const draftName = (found) => `draft:${found.dataset.draft}`;
  let unsaved = null; // [name, text] of a draft
  let timer = 0;

  function remember() {
    if (!form().dataset.draft) return; // a temporary chat keeps none
    unsaved = [draftName(form()), box().value];
    clearTimeout(timer);
    timer = setTimeout(save, DRAFT_MS);
  }

  function save() {
    if (!unsaved) return;
    const [name, text] = unsaved;
    unsaved = null;
    try {
      if (text) localStorage.setItem(name, text);
      else localStorage.removeItem(name);
    } catch { /* storage is full or blocked: the text is still in the box */ }
  }

  // Hex alone, for `randomUUID` wants a secure origin.
  const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

  const isBusy = () => document.querySelector("#turns article[data-generation]") !== null;

  function update() {
    const found = form();
    if (!found) return;
    found.toggleAttribute("data-busy", isBusy());
    if (!isBusy() && document.activeElement?.dataset.act === "halt") box().focus(); // it is about to vanish
    found.querySelector(".send").disabled = !/\S/.test(box().value);
  }

  function begin() {
    const found = form();
    if (!found || found.dataset.ready) return update();
    found.dataset.ready = "yes";
    save();
    try {
      if (!box().value) box().value = localStorage.getItem(draftName(found)) || "";
    } catch { /* no draft then */ }
    if (!isTouch && !document.activeElement?.matches("input, textarea, select")) box().focus({ preventScroll: true });
    update();
  }

  function halt() {
    const stop = document.querySelector("#turns article[data-generation] .status form");
    if (!stop) return false;
    stop.requestSubmit();
    stop.querySelector("button").disabled = true;
    const status = stop.closest(".status");
    status.querySelector(".now").textContent = status.dataset.stopping;
    return true;
  }

  document.addEventListener("keydown", (event) => {
    const { key } = event;
    if (key === "Escape" && !event.shiftKey && !event.defaultPrevented && !document.querySelector("details.menu[open], dialog[open]")) {
      if (halt()) event.preventDefault();
      return;
    }
    if (event.target !== box() || event.isComposing || event.keyCode === 229 || event.shiftKey) return;
    if (key === "ArrowUp" && !box().value) {
      const edit = [...document.querySelectorAll(".msg.user [data-act=edit]")].pop();
      edit?.click();
      if (edit) event.preventDefault();
    }
    if (key !== "Enter" || (isTouch && !event.ctrlKey && !event.metaKey)) return; // on touch Enter is a new line
    event.preventDefault();
    if (!event.repeat && !form().querySelector(".send").disabled) form().requestSubmit();
  });

  document.addEventListener("input", (event) => {
    if (event.target !== box()) return;
    remember();
    update();
  });

  document.addEventListener("htmx:configRequest", (event) => {
    const { parameters } = event.detail;
    if (queue()?.contains(event.target)) parameters.leaf = document.querySelector("#turns > article:last-of-type")?.id.slice(2) || "";
    if (event.target !== form()) return;
    const text = box().value;
    const { sentText } = form(); // what was last sent with the key now in it
    if (sentText !== undefined && sentText !== text) {
      // The press before may have been taken without our hearing of it: another text is another message.
      parameters.key = form().querySelector("#key").value = newKey();
    }
    form().sentText = text;
    document.getElementById("refusal").replaceChildren();
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target === form()) form().classList.add("sending");
    // Nobody looks, or somebody is changing what waits: it is asked for again afterwards.
    if (event.target === queue() && (document.hidden || queue().querySelector("details[open]"))) event.preventDefault();
  });

  document.addEventListener("toggle", (event) => {
    if (queue()?.contains(event.target) && !event.target.open) window.htmx.trigger(queue(), "news");
  }, true);

  document.addEventListener("htmx:afterRequest", (event) => {
    const sender = event.detail.requestConfig?.elt; // it may have left the page by now
    if (sender?.id !== "composer") return;
    sender.classList.remove("sending");
    if (event.detail.xhr?.status && event.detail.xhr.status < 400) {
      const typed = sender.querySelector("textarea[name=text]");
      if (typed.value === sender.sentText) {
        typed.value = "";
        unsaved = [draftName(sender), ""];
        save();
      }
      delete sender.sentText;
      document.getElementById("empty")?.remove();
    }
    begin();
  });

  document.addEventListener("click", (event) => {
    const act = event.target.closest?.("[data-act]")?.dataset.act;
    if (act === "halt") halt();
    if (act === "starter") {
      box().value = event.target.textContent.trim();
      box().focus();
      remember();
      update();
    }
    if (act === "no-starters") {
      localStorage.setItem("starters", "off");
      event.target.closest(".ideas").remove();
    }
  });

  for (const name of ["htmx:afterSettle", "answer:began", "answer:ended"]) document.addEventListener(name, begin);
  for (const name of ["pagehide", "visibilitychange"]) addEventListener(name, save);
  begin(); // scripts are deferred
})();
