{% load i18n %}{% get_current_language as language %}// Shows a page of its own where the site cannot be reached.
// Keeps that alone, and leaves streams and fragments be.
const NAME = "{{ language }}";
const KEPT = [{% for address in kept %}"{{ address }}"{% if not forloop.last %}, {% endif %}{% endfor %}];

addEventListener("install", (event) => {
  skipWaiting();
  event.waitUntil(caches.open(NAME).then((cache) => cache.addAll(KEPT)));
});
addEventListener("activate", (event) => {
  const forget = (names) => Promise.all(names.map((name) => name === NAME || caches.delete(name)));
  event.waitUntil(caches.keys().then(forget));
});
addEventListener("fetch", (event) => {
  const { request } = event;
  const isPage = request.mode === "navigate";
  if (request.method !== "GET" || !(isPage || KEPT.includes(new URL(request.url).pathname))) return;
  event.respondWith(fetch(request).catch(() => caches.match(isPage ? KEPT[0] : request)));
});
addEventListener("notificationclick", ({ notification }) => {
  notification.close();
  clients.matchAll().then((found) => (found.find(({ url }) => url === notification.data) || found[0])?.focus());
});
