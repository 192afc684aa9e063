// Applies the stored theme before anything is drawn. `page.js` changes it.
(() => {
  "use strict";
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* storage is blocked: the system's theme holds */ }
  document.documentElement.classList.add("js");
})();
