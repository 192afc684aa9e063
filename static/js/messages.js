// What is done to one message: its panel, the reader's place when versions change, local times.
const on = addEventListener;
const byId = (id) => document.getElementById(id);
const focus = (found) => found?.focus({ preventScroll: true });
const local = (time) => new Date(time.dateTime).toLocaleString();
const room = new CSSStyleSheet(); // a style attribute htmx would copy, and the policy forbid it
let opener = null; // of the panel
let place = null; // where the reader was: {above, top, step}
document.adoptedStyleSheets.push(room);

function close(panel) {
  panel.replaceChildren();
  focus(opener);
}

on("keydown", (event) => {
  const { key, target } = event;
  const panel = target.closest?.("article .panel");
  const saves = key === "Enter" && (event.ctrlKey || event.metaKey) && target.form;
  if (!panel || event.isComposing || (key !== "Escape" && !saves)) return;
  event.preventDefault();
  event.stopPropagation();
  if (saves) saves.requestSubmit();
  else close(panel);
}, true);

on("click", (event) => {
  const panel = event.target.closest("[data-act=close]")?.closest("article .panel");
  if (panel) {
    event.preventDefault();
    close(panel);
  }
  // A thought that closes leaves its room, or the end of the list would jump.
  if (event.target.closest(".think[open] > summary")) room.replaceSync(`#turns { min-height: ${byId("turns").offsetHeight}px; }`);
});

on("pointerover", ({ target }) => {
  if (target.tagName === "TIME") target.title = local(target);
});

on("htmx:beforeSwap", ({ detail: { target, requestConfig: { elt } } }) => {
  if (target.matches(".panel") && !target.contains(elt)) opener = elt;
  room.replaceSync("");
  if (!target.matches("#log, .earlier")) return; // others come between a swap and its settling
  place = null;
  if (elt.dataset.stay === undefined) return;
  const article = elt.closest("article");
  const articles = [...htmx.findAll("#turns > article")];
  const above = article ? articles[articles.indexOf(article) - 1] : articles[0];
  place = { above: above?.id, top: (above || article).getBoundingClientRect().top, step: elt.dataset.stay };
});

on("htmx:afterSettle", ({ detail: { target } }) => {
  if (target.matches(".panel")) {
    for (const time of target.querySelectorAll("time")) time.textContent = local(time);
    const box = target.querySelector("textarea");
    box?.setSelectionRange(box.value.length, box.value.length);
    target.scrollIntoView({ block: "nearest" });
  }
  if (target.tagName === "ARTICLE") focus(byId(target.id)?.querySelector(".bar a"));
  if (!place || !target.matches("#log, .earlier")) return;
  const above = byId(place.above);
  const next = htmx.find(above ? `#${above.id} ~ article` : "#turns > article");
  if (next) byId("log").scrollTop += (above || next).getBoundingClientRect().top - place.top;
  focus(next?.querySelector(`[data-stay=${place.step || "x"}] button`) || next?.querySelector("[data-stay] button") || byId("log"));
});
