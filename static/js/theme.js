// Before anything is drawn: applies what this browser has stored, which other scripts change; and has Enter send.
for (const name of ["localStorage", "sessionStorage"]) {
  try {
    window[name].length;
  } catch { // storage is blocked: what is kept holds for this page
    Object.defineProperty(window, name, { value: {} });
  }
}
document.documentElement.dataset.theme = localStorage.theme || "system";
document.documentElement.classList.toggle("no-starters", localStorage.starters === "off");
document.documentElement.classList.add("js");
document.cookie = `zone=${Intl.DateTimeFormat().resolvedOptions().timeZone};path=/;max-age=31536000;samesite=lax`;
// What is entered before the other scripts are here goes as the plain form it is.
addEventListener("keydown", (event) => {
  const { target, key } = event;
  if (target.id !== "text" || key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  if (matchMedia("(pointer: coarse)").matches && !event.ctrlKey && !event.metaKey) return; // on touch Enter is a new line
  event.preventDefault();
  if (!event.repeat && /\S/.test(target.value) && !target.form.querySelector(".send").disabled) target.form.requestSubmit();
});
