// What is done to one message: its panel, the reader's place when versions change, local times.
(() => {
  "use strict";

  const byId = (id) => document.getElementById(id);
  const focus = (found) => found?.focus({ preventScroll: true });
  const local = (time) => new Date(time.dateTime).toLocaleString();
  let opener = null; // of the panel
  let place = null; // where the reader was: {above, top, step}

  function close(panel) {
    panel.replaceChildren();
    focus(opener);
  }

  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    const panel = target.closest?.("article .panel");
    const saves = key === "Enter" && (event.ctrlKey || event.metaKey) && target.form;
    if (!panel || event.isComposing || (key !== "Escape" && !saves)) return;
    event.preventDefault();
    event.stopPropagation();
    if (saves) saves.requestSubmit();
    else close(panel);
  }, true);

  document.addEventListener("click", (event) => {
    const panel = event.target.closest("[data-act=close]")?.closest("article .panel");
    if (panel) {
      event.preventDefault();
      close(panel);
    }
    // A thought that closes leaves its room, or the end of the list would jump.
    const turns = event.target.closest(".think[open] > summary") && byId("turns");
    if (turns) turns.style.minHeight = `${turns.offsetHeight}px`;
  });

  document.addEventListener("pointerover", ({ target }) => {
    if (target.tagName === "TIME") target.title = local(target);
  });

  document.addEventListener("htmx:beforeSwap", ({ detail: { target, requestConfig: { elt } } }) => {
    const article = elt.closest("article");
    if (target.matches(".panel") && !target.contains(elt)) opener = elt;
    place = null;
    byId("turns")?.removeAttribute("style"); // htmx would copy it, and the policy forbid it
    if (target.id !== "log" || elt.dataset.stay === undefined) return;
    let above = article.previousElementSibling;
    while (above && above.tagName !== "ARTICLE") above = above.previousElementSibling;
    place = { above: above?.id, top: (above || article).getBoundingClientRect().top, step: elt.dataset.stay };
  });

  document.addEventListener("htmx:afterSettle", ({ detail: { target } }) => {
    if (target.matches(".panel")) {
      for (const time of target.querySelectorAll("time")) time.textContent = local(time);
      const box = target.querySelector("textarea");
      box?.setSelectionRange(box.value.length, box.value.length);
      target.scrollIntoView({ block: "nearest" });
    }
    if (target.tagName === "ARTICLE") focus(byId(target.id)?.querySelector(".bar a"));
    if (target.id !== "log" || !place) return;
    const above = byId(place.above);
    const next = document.querySelector(above ? `#${above.id} ~ article` : "#turns > article");
    if (next) byId("log").scrollTop += (above || next).getBoundingClientRect().top - place.top;
    focus(next?.querySelector(`[data-stay=${place.step || "x"}] button`) || next?.querySelector("[data-stay] button") || byId("log"));
  });
})();
