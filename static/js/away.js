// For who looks elsewhere: an ended answer marks the tab; of a long one the worker tells, where that was asked for.
const LONG_MS = 15000;
const MARK = "● ";
const on = addEventListener;
const words = document.body.dataset;
const worker = window.Notification && navigator.serviceWorker; // none without a secure origin
const isOn = () => localStorage.notify === "on" && Notification.permission === "granted";
const began = {}; // article's id -> when

function show() {
  const button = htmx.find("[data-act=notify]");
  if (button) button.hidden = !worker;
  button?.setAttribute("aria-pressed", Boolean(worker && isOn()));
}

on("click", async ({ target }) => {
  if (target.dataset.act !== "notify") return;
  localStorage.notify = isOn() ? "off" : "on";
  if (localStorage.notify === "on" && (await Notification.requestPermission()) !== "granted") target.textContent = words.denied;
  show();
});
on("answer:began", ({ target }) => (began[target.id] = Date.now()));
on("answer:ended", async ({ target: { id }, detail: { status } }) => {
  if (!document.hidden) return;
  document.title = MARK + document.title.replace(MARK, "");
  if (!worker || !isOn() || Date.now() - began[id] < LONG_MS) return;
  (await worker.ready).showNotification(words.site, { body: words[status], tag: id, data: location.href });
});
on("visibilitychange", () => document.hidden || (document.title = document.title.replace(MARK, "")));
on("htmx:afterSettle", show);
navigator.serviceWorker?.register("/sw.js");
show();
