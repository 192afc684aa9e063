// Applies what this browser has stored before anything is drawn. Other scripts change it.
(() => {
  "use strict";
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    document.documentElement.classList.toggle("no-starters", localStorage.getItem("starters") === "off");
  } catch { /* storage is blocked: the system's theme holds */ }
  document.documentElement.classList.add("js");
})();
