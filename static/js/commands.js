// The "/" menu of the message box, the keys, and prompts with blanks to fill in.
//
// What there is stands in the templates: an option of the menu, or a row of the help sheet, says by data-* what it
// clicks, focuses, sets, posts or opens. Here is only how.
(() => {
  "use strict";

  const byId = (id) => document.getElementById(id);
  const box = () => byId("text");
  const menu = () => byId("commands");
  const options = () => [...(menu()?.querySelectorAll("[role=option]") || [])];
  const isOpen = () => menu()?.hidden === false;
  const click = (selector) => [...document.querySelectorAll(selector)].pop()?.click();
  const areKeysOn = () => localStorage.keys !== "off";
  const on = (name, take) => document.addEventListener(name, take, true);
  let chosen = null;

  const isNamed = ({ dataset: { name, argument } }, text) => text === `/${name}` || (argument === "" && text.startsWith(`/${name} `));

  function choose(option) {
    for (const each of options()) each.setAttribute("aria-selected", each === option);
    chosen = option;
    option?.scrollIntoView({ block: "nearest" });
    box().setAttribute("aria-activedescendant", option?.id || "");
  }

  function show(isWanted) {
    if (!menu()) return;
    const text = box().value;
    for (const each of options()) each.hidden = !`/${each.dataset.name}`.startsWith(text) && !isNamed(each, text);
    const first = options().find((each) => !each.hidden);
    menu().hidden = !isWanted || text[0] !== "/" || !(first || /^\/\w*$/.test(text));
    menu().querySelector(".none").hidden = Boolean(first);
    for (const [name, value] of [["aria-autocomplete", "list"], ["aria-controls", "command-list"]]) { // a text area is no combobox
      if (isOpen()) box().setAttribute(name, value);
      else box().removeAttribute(name);
    }
    choose(isOpen() ? first : null);
    if (isOpen()) loadPrompts();
  }

  async function loadPrompts() {
    const { prompts } = menu().dataset;
    if (!prompts) return;
    delete menu().dataset.prompts;
    menu().querySelector("ul").insertAdjacentHTML("beforeend", await (await load(prompts)).text());
    show(isOpen());
  }

  async function load(address, body) {
    const answer = await fetch(address, { method: body ? "POST" : "GET", body, headers: { "HX-Request": "true" } });
    if (!answer.ok) location.reload(); // signed out, or no longer there; the draft is kept
    return answer;
  }

  function type(text) {
    box().value = text;
    box().focus();
    box().dispatchEvent(new Event("input", { bubbles: true }));
  }

  function say(words, isRefusal) {
    byId("refusal").innerHTML = isRefusal ? '<p class="err" role="alert"></p>' : '<p class="note" role="status"></p>';
    byId("refusal").firstChild.textContent = words;
  }

  function run(option) {
    const { name, argument, field, value, go, post, fill, done, refuse } = option.dataset;
    const rest = box().value.slice(name.length + 2).trim();
    if (argument === "" && !rest) return type(`/${name} `);
    if (field) {
      const found = document.querySelector(`#tune [name=${field}]`);
      const before = found.value;
      found.value = value ?? rest;
      if (!found.value) { // a list takes what it has
        found.value = before;
        return say(refuse, true);
      }
      if (found.form.id === "tuning") found.form.requestSubmit();
      say(done);
    }
    type("");
    click(option.dataset.click || ".nothing");
    if (go) location.assign(go);
    if (post) window.htmx.ajax("POST", post, { target: "#log", swap: "outerHTML", values: { conversation: byId("chat").dataset.conversation } });
    if (fill) ask(fill);
  }

  // A prompt's text, or first the form for its blanks.
  async function ask(address, body) {
    const answer = await load(address, body);
    const text = await answer.text();
    const dialog = byId("prompt");
    dialog.close();
    if (answer.headers.get("Content-Type").startsWith("text/plain")) return type(text);
    dialog.innerHTML = text;
    dialog.showModal();
  }

  function combination(event) {
    const key = event.key.toLowerCase();
    const isShifted = event.shiftKey && (key.length > 1 || key !== key.toUpperCase()); // "/" may need it
    return `${event.ctrlKey || event.metaKey ? "ctrl+" : ""}${isShifted ? "shift+" : ""}${key}`;
  }

  on("keydown", (event) => {
    const { key } = event;
    if (!key || event.isComposing || event.keyCode === 229 || event.altKey) return;
    if (event.target === box() && isOpen() && !event.shiftKey) {
      const shown = options().filter((each) => !each.hidden);
      const step = { ArrowDown: 1, ArrowUp: shown.length - 1 }[key];
      if (step && chosen) choose(shown[(shown.indexOf(chosen) + step) % shown.length]);
      else if (key === "Escape") show(false);
      else if ((key === "Enter" || key === "Tab") && chosen) event.repeat || run(chosen);
      else return;
    } else {
      const wanted = combination(event);
      const row = [...document.querySelectorAll("#help [data-keys]")].find((each) => each.dataset.keys === wanted);
      if (!row || !areKeysOn() || document.querySelector("dialog[open]")) return;
      const { focus, toggle } = row.dataset;
      if (focus) document.querySelector(focus)?.focus();
      else if (toggle && innerWidth > 768) document.documentElement.classList.toggle(toggle);
      else if (!event.repeat) click(row.dataset.click);
    }
    event.preventDefault();
    event.stopImmediatePropagation();
  });

  on("input", (event) => event.target === box() && show(true));
  on("focusout", (event) => event.target === box() && show(false));
  on("mousedown", (event) => menu()?.contains(event.target) && event.preventDefault()); // keeps the focus
  on("change", ({ target }) => {
    if (target.id === "keys-on") localStorage.keys = target.checked ? "on" : "off";
  });

  on("click", ({ target }) => {
    const option = target.closest?.("#commands [role=option]");
    if (option) run(option);
    if (target.dataset?.act === "help") {
      byId("keys-on").checked = areKeysOn();
      byId("help").showModal();
    }
    if (target.matches?.("dialog")) target.close(); // beside it
  });

  on("submit", (event) => {
    const form = event.target;
    const isFilled = form.closest("#prompt") && event.submitter?.formMethod !== "dialog";
    const command = form.id === "composer" && options().find((each) => isNamed(each, box().value));
    if (!isFilled && !command) return;
    event.preventDefault();
    event.stopPropagation();
    if (command) run(command);
    else ask(form.action, new FormData(form));
  });

  on("htmx:afterSettle", ({ detail: { target } }) => {
    if (target?.id === "tuning-refusal") byId("tune").open = true;
    if (target?.id === "tune" && document.activeElement === document.body) document.querySelector("#tune summary").focus();
  });
})();
