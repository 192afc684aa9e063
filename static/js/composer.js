// The message box: keys, draft, the key of one press of Send, files dropped or pasted, and the queue above it; the
// warning before a temporary chat, which the page alone holds, is lost.
//
// Works by delegation, because htmx may replace the form at any time. The server alone decides what is accepted.
const DRAFT_MS = 250; // after the last key: a long text costs something to keep
const on = addEventListener;
const byId = (id) => document.getElementById(id);
const form = () => byId("composer");
const box = () => byId("text");
const turns = () => htmx.findAll(".temporary #turns [name=content]");
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
    if (text) localStorage[name] = text;
    else delete localStorage[name];
  } catch { /* storage is full: the text is still in the box */ }
}

// Decimal digits make a UUID as well; `randomUUID` wants a secure origin.
const newKey = () => crypto.getRandomValues(new Uint8Array(32)).map((byte) => byte % 10).join("");

const writing = () => htmx.find("#turns article[data-generation]");

function update() {
  if (!form()) return;
  form().toggleAttribute("data-busy", writing());
  if (!writing() && document.activeElement.dataset.act === "halt") box().focus(); // it is about to vanish
  form().querySelector(".send").disabled = !box().value.trim() || form().querySelector("#file.htmx-request"); // a file is coming
}

function begin() {
  const found = form();
  if (!found || found.dataset.ready) return update();
  found.dataset.ready = "yes";
  save();
  box().value ||= localStorage[draftName(found)] || "";
  const isTouch = matchMedia("(pointer: coarse)").matches;
  if (!isTouch && !document.activeElement.matches("input, textarea, select")) box().focus({ preventScroll: true });
  update();
}

function halt() {
  const stop = writing()?.querySelector(".status form");
  if (!stop) return false;
  stop.requestSubmit();
  stop.querySelector("button").disabled = true;
  return true;
}

on("keydown", (event) => {
  const { key, target } = event;
  if (event.isComposing || event.shiftKey || event.defaultPrevented) return;
  if (key === "Escape" && !htmx.find("details.menu[open], dialog[open]") && halt()) event.preventDefault();
  if (key !== "ArrowUp" || target !== box() || target.value) return;
  const edit = [...htmx.findAll(".msg.user [data-act=edit]")].pop();
  edit?.click();
  if (edit) event.preventDefault();
});

on("paste", ({ target }) => target === box() && target.removeAttribute("dir")); // else a long one takes seconds
on("input", ({ target }) => {
  if (target !== box()) return;
  target.dir = target.value.length > 1e4 ? "" : "auto";
  remember();
  update();
});

on("htmx:configRequest", ({ target, detail: { parameters } }) => {
  if (target.closest("#queue, #news")) parameters.leaf = htmx.find("#turns > article:last-of-type")?.id.slice(2) || "";
  if (target !== form()) return;
  const text = box().value;
  const { sentText } = target; // what was last sent with the key now in it
  if (sentText !== undefined && sentText !== text) {
    // The press before may have been taken without our hearing of it: another text is another message.
    parameters.key = byId("key").value = newKey();
  }
  target.sentText = text;
  byId("refusal").replaceChildren();
});

on("htmx:beforeRequest", (event) => {
  // Nobody looks, or somebody is changing what waits: it is asked for again afterwards.
  if (event.target.id === "news" && (document.hidden || htmx.find("#queue details[open]"))) event.preventDefault();
});

on("toggle", ({ target }) => {
  if (target.closest("#queue") && !target.open) htmx.trigger("#news", "news");
}, true);

on("htmx:afterRequest", ({ detail: { requestConfig, xhr } }) => {
  const sender = requestConfig?.elt; // it may have left the page by now
  if (sender?.id === "file") sender.value = ""; // the same one may come again
  if (sender?.id !== "composer") return;
  if (xhr?.status && xhr.status < 400) {
    const typed = sender.querySelector("#text");
    if (typed.value === sender.sentText) {
      typed.value = "";
      unsaved = [draftName(sender), ""];
      save();
    }
    delete sender.sentText;
    byId("empty")?.remove();
  }
});

on("click", ({ target }) => {
  const { act } = target.dataset;
  if (act === "halt") halt();
  if (act === "starter") {
    box().value = target.textContent.trim();
    box().focus();
    htmx.trigger(box(), "input");
  }
  if (act === "no-starters") {
    localStorage.starters = "off";
    target.closest(".ideas").remove();
  }
  if (act === "save") {
    const text = [...turns()].map((turn) => `## ${turn.dataset.who}\n\n${turn.value}\n`).join("\n");
    target.href = URL.createObjectURL(new Blob([text]));
  }
});

function take(event) {
  const input = byId("file");
  const data = event.clipboardData || event.dataTransfer;
  if (!input || !data.files.length || data.types.includes("text/plain")) return;
  event.preventDefault();
  input.files = data.files;
  htmx.trigger(input, "change");
}

on("paste", take);
on("drop", take);
on("dragover", (event) => {
  if (byId("file") && event.dataTransfer.types.includes("Files")) event.preventDefault();
});

on("beforeunload", (event) => turns().length && event.preventDefault());
on("htmx:confirm", (event) => {
  if (event.detail.target?.id !== "chat" || !turns().length) return;
  event.preventDefault();
  if (confirm(byId("chat").dataset.leave)) event.detail.issueRequest(true);
});

for (const name of ["htmx:afterSettle", "htmx:beforeSend", "htmx:afterRequest", "answer:began", "answer:ended"]) on(name, begin);
on("pagehide", save);
on("visibilitychange", save);
begin();
