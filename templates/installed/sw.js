{% load i18n %}{% get_current_language as language %}// Shows a page of its own when the site cannot be reached, and a notification's chat. Keeps nothing else of the site,
// and leaves whatever is no page alone: streams, fragments, files.
const NAME = "offline {{ language }}";
const KEPT = [{% for address in kept %}"{{ address }}"{% if not forloop.last %}, {% endif %}{% endfor %}];

addEventListener("install", (event) => {
  skipWaiting();
  event.waitUntil(caches.open(NAME).then((cache) => cache.addAll(KEPT)));
});

addEventListener("activate", (event) => {
  const old = (names) => Promise.all(names.filter((name) => name !== NAME).map((name) => caches.delete(name)));
  event.waitUntil(caches.keys().then(old));
});

addEventListener("fetch", (event) => {
  const { request } = event;
  const isPage = request.mode === "navigate";
  if (request.method !== "GET" || !(isPage || KEPT.includes(new URL(request.url).pathname))) return;
  event.respondWith(fetch(request).catch(() => caches.match(isPage ? KEPT[0] : request)));
});

addEventListener("notificationclick", ({ notification }) => {
  notification.close();
  clients.matchAll({ type: "window" }).then((found) => (found.find(({ url }) => url === notification.data) || found[0])?.focus());
});
