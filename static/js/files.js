// Files dropped or pasted; the warning before a temporary chat, which the page alone holds, is lost.
(() => {
  "use strict";

  const on = addEventListener;
  const byId = (id) => document.getElementById(id);
  const turns = () => document.querySelectorAll(".temporary #turns [name=content]");

  function take(event, data) {
    const input = byId("file");
    if (!input || !data?.files.length || data.types.includes("text/plain")) return;
    event.preventDefault();
    input.files = data.files;
    window.htmx.trigger(input, "change");
  }

  on("paste", (event) => take(event, event.clipboardData));
  on("drop", (event) => take(event, event.dataTransfer));
  on("dragover", (event) => {
    if (byId("file") && event.dataTransfer.types.includes("Files")) event.preventDefault();
  });

  on("htmx:afterRequest", ({ target }) => {
    if (target.id === "file") target.value = ""; // the same one may come again
  });

  on("beforeunload", (event) => turns().length && event.preventDefault());
  on("htmx:confirm", (event) => {
    if (event.detail.target?.id !== "chat" || !turns().length) return;
    event.preventDefault();
    if (confirm(byId("chat").dataset.leave)) event.detail.issueRequest(true);
  });
  on("click", (event) => {
    const link = event.target.closest("[data-act=save]");
    if (!link) return;
    const text = [...turns()].map((turn) => `## ${turn.dataset.who}\n\n${turn.value}\n`).join("\n");
    link.href = URL.createObjectURL(new Blob([text]));
  });
})();
