// The "/" menu of the message box, the keys, and prompts with blanks to fill in.
//
// What there is stands in the templates: an option of the menu, or a row of the help sheet, says by data-* what it
// clicks, focuses, sets or opens, or by hx-* what it asks for. Here is only how.
const byId = (id) => document.getElementById(id);
const box = () => byId("text");
const menu = () => byId("commands");
const options = () => [...(menu()?.querySelectorAll("[role=option]") || [])];
const isOpen = () => menu()?.hidden === false;
const click = (selector) => [...htmx.findAll(selector)].pop()?.click();
const on = (name, take) => addEventListener(name, take, true);
let chosen = null;
byId("keys-on").checked = localStorage.keys !== "off";

const isNamed = ({ dataset: { name, argument } }, text) => text === `/${name}` || (argument === "" && text.startsWith(`/${name} `));

function choose(option) {
  for (const each of options()) each.ariaSelected = each === option;
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
  choose(isOpen() ? options().find((each) => each === chosen && !each.hidden) || first : null);
  if (isOpen()) htmx.trigger("#command-list", "opened"); // brings the prompts, once
}

function type(text) {
  box().value = text;
  box().focus();
  htmx.trigger(box(), "input");
}

function say(textContent, className, role) {
  const line = document.createElement("p");
  byId("refusal").replaceChildren(Object.assign(line, { textContent, className, role }));
}

function run(option) {
  const { name, argument, field, value, go, done, refuse } = option.dataset;
  const rest = box().value.slice(name.length + 2).trim();
  if (argument === "" && !rest) return type(`/${name} `);
  if (field) {
    const found = htmx.find(`#tune [name=${field}]`);
    const before = found.value;
    found.value = value ?? rest;
    if (!found.value) { // a list takes what it has
      found.value = before;
      return say(refuse, "err", "alert");
    }
    if (found.form.id === "tuning") found.form.requestSubmit();
    say(done, "note", "status");
  }
  type("");
  click(option.dataset.click || ".nothing");
  if (go) location.assign(go);
  htmx.trigger(option, "run");
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
    const row = [...htmx.findAll("#help [data-keys]")].find((each) => each.dataset.keys === wanted);
    if (!row || !byId("keys-on").checked || htmx.find("dialog[open]")) return;
    const { focus, toggle } = row.dataset;
    if (focus) htmx.find(focus)?.focus();
    else if (toggle && innerWidth > 768) document.documentElement.classList.toggle(toggle);
    else if (!event.repeat) click(row.dataset.click);
  }
  event.preventDefault();
  event.stopImmediatePropagation();
});

on("input", ({ target }) => target === box() && show(true));
on("focusout", ({ target }) => target === box() && show(false));
on("mousedown", (event) => menu()?.contains(event.target) && event.preventDefault()); // keeps the focus
on("change", ({ target }) => {
  if (target.id === "keys-on") localStorage.keys = target.checked ? "on" : "off";
});

on("click", ({ target }) => {
  const option = target.closest("#commands [role=option]");
  if (option) run(option);
  if (target.dataset.act === "help") byId("help").showModal();
  if (target.matches("dialog, [data-act=leave]")) target.closest("dialog").close(); // beside it, too
});

on("submit", (event) => {
  const command = event.target.id === "composer" && options().find((each) => isNamed(each, box().value));
  if (!command) return;
  event.preventDefault();
  event.stopPropagation();
  run(command);
});

// A prompt's text, or first the form for its blanks.
on("htmx:beforeSwap", ({ detail }) => {
  if (detail.target.id !== "prompt" || !detail.xhr.getResponseHeader("Content-Type").startsWith("text/plain")) return;
  detail.shouldSwap = false;
  byId("prompt").close();
  type(detail.xhr.responseText);
});
on("htmx:afterSettle", ({ detail: { target } }) => {
  if (target?.id === "command-list") show(isOpen());
  if (target?.id === "prompt") {
    target.close();
    target.showModal(); // and in its first field
  }
  if (target?.id === "tuning-refusal") byId("tune").open = true;
});
