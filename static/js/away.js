// For who looks elsewhere: an answer that ended marks the tab, a long one is notified of where that was asked for, and
// the service worker shows a page while the site cannot be reached.
(() => {
  "use strict";

  const LONG_MS = 15000;
  const MARK = "● ";
  const began = new Map(); // article id -> when
  const words = document.body.dataset;
  const worker = navigator.serviceWorker; // none without a secure origin
  const isOn = () => localStorage.notify === "on" && Notification.permission === "granted";

  function show() {
    const button = document.querySelector("[data-act=notify]");
    if (!button || !worker || !window.Notification) return;
    button.hidden = false;
    button.setAttribute("aria-pressed", isOn());
  }

  document.addEventListener("click", async ({ target }) => {
    const button = target.closest("[data-act=notify]");
    if (!button) return;
    localStorage.notify = isOn() ? "off" : "on";
    if (localStorage.notify === "on" && (await Notification.requestPermission()) !== "granted") button.textContent = words.denied;
    show();
  });

  document.addEventListener("answer:began", ({ target }) => began.set(target.id, Date.now()));
  document.addEventListener("answer:ended", async ({ target, detail }) => {
    if (!document.hidden) return;
    if (!document.title.startsWith(MARK)) document.title = MARK + document.title;
    if (!worker || !isOn() || Date.now() - began.get(target.id) < LONG_MS) return;
    (await worker.ready).showNotification(words.site, { body: words[detail.status], tag: target.id, data: location.href });
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && document.title.startsWith(MARK)) document.title = document.title.slice(MARK.length);
  });
  document.addEventListener("htmx:afterSettle", show);
  worker?.register("/sw.js");
  show();
})();
