// Follows answers that are being written: one EventSource per generation, as long as its article is on the page.
//
// Owns the cursor (`<mark>:<seq>`), reconnection, and what a live article shows. The server sends HTML: finished blocks
// that never change, the look of the tail after them, and plain text to add to that (in its `b`); nothing is parsed
// here. An end of the stream without
// `done` means: connect again after the cursor. Tells others by events that bubble from the article: `answer:grew`,
// `answer:ended` {status}. Knows nothing of scrolling or of the composer.
(() => {
  "use strict";

  const FIRST_DELAY_MS = 500;
  const MAX_DELAY_MS = 15000;
  const ASK_AFTER_FAILURES = 2; // then ask for the message itself: it may have ended, or we are signed out
  const STALE_MS = 40000; // a tab that slept this long connects again rather than trusting an open socket

  const streams = new Map(); // generation id -> Stream

  class Stream {
    constructor(article) {
      this.article = article;
      this.id = article.dataset.generation;
      [this.mark, this.seq] = parse(article.dataset.cursor);
      this.source = null;
      this.timer = 0;
      this.failures = 0;
      this.isOver = false;
      this.heardAt = Date.now();
      this.thinkingSince = 0;
      this.thinkingTimer = 0;
      this.pendingBlocks = "";
      this.pendingText = "";
      this.told = ""; // the tail's HTML, as the server last told it
      this.newTail = null;
      this.pendingThought = "";
      this.isDrawPlanned = false;
      this.tail = article.querySelector(".tail");
      this.status = article.querySelector(".status");
      if (this.status.dataset.phase === "thinking") this.startThinking();
      article.classList.add("fresh"); // long code that was seen growing is not folded
      this.connect();
    }

    connect() {
      if (this.isOver) return;
      this.disconnect();
      const after = this.mark ? `&after=${this.mark}:${this.seq}` : "";
      const source = new EventSource(`${this.article.dataset.events}?as=page${after}`);
      this.source = source;
      const on = (name, take) =>
        source.addEventListener(name, (event) => {
          if (this.source !== source) return;
          this.heardAt = Date.now();
          this.failures = 0;
          take.call(this, JSON.parse(event.data), event.lastEventId);
        });
      on("status", this.onStatus);
      on("delta", this.onDelta);
      on("reset", this.onReset);
      on("done", this.onDone);
      on("again", this.connect); // the server ends every stream after so many bytes
      source.onerror = () => {
        if (this.source === source) this.onError();
      };
    }

    disconnect() {
      clearTimeout(this.timer);
      this.timer = 0;
      this.source?.close();
      this.source = null;
    }

    close() {
      this.isOver = true;
      this.disconnect();
      clearInterval(this.thinkingTimer);
      streams.delete(this.id);
    }

    onError() {
      this.disconnect();
      this.failures += 1;
      if (this.failures > 1) this.say("reconnecting");
      if (this.failures >= ASK_AFTER_FAILURES) this.ask();
      const delay = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** (this.failures - 1));
      this.timer = setTimeout(() => this.connect(), delay * (0.6 + 0.8 * Math.random()));
    }

    // The stream does not come up: look at the message itself.
    async ask() {
      try {
        const answer = await fetch(this.article.dataset.self, { headers: { "HX-Request": "true" }, cache: "no-store" });
        if (this.isOver) return;
        if (answer.status === 401) return this.leave("out");
        if (answer.status === 404) return this.leave("gone");
        if (!answer.ok) return;
        const settled = element(await answer.text());
        if (settled && !settled.dataset.generation && !this.isOver) this.replaceBy(settled);
      } catch { /* away: the next attempt comes anyway */ }
    }

    leave(why) {
      this.status.dataset.phase = "";
      this.say("reconnecting", this.words(why));
      this.close();
    }

    isNew(id) {
      const [mark, seq] = parse(id);
      if (!mark) return true;
      if (this.mark && mark !== this.mark) this.clear();
      else if (this.mark && seq <= this.seq) return false;
      [this.mark, this.seq] = [mark, seq];
      return true;
    }

    onReset(data) {
      this.clear();
      [this.mark, this.seq] = [data.mark || "", 0];
    }

    clear() {
      this.pendingBlocks = this.pendingText = this.pendingThought = this.told = "";
      this.newTail = null;
      this.tail.parentElement.replaceChildren(this.tail);
      this.tail.textContent = "";
      const think = this.article.querySelector(".think");
      think.querySelector(".thought").textContent = "";
      think.hidden = true;
    }

    onDelta(data, id) {
      if (!this.isNew(id)) return;
      if ("html" in data) {
        const html = this.told.slice(0, data.keep || 0) + data.html;
        this.pendingBlocks += html.slice(0, data.cut || 0);
        this.told = this.newTail = html.slice(data.cut || 0);
        this.pendingText = "";
      }
      this.pendingText += data.grow || "";
      if (data.reasoning) this.pendingThought += data.reasoning;
      if (data.grow || data.html) this.stopThinking();
      this.planDraw();
    }

    // At most once a frame; a hidden tab gets no frames, so a timer stands in.
    planDraw() {
      if (this.isDrawPlanned) return;
      this.isDrawPlanned = true;
      const draw = () => {
        this.isDrawPlanned = false;
        if (!this.isOver) this.draw();
      };
      if (document.hidden) setTimeout(draw, 250);
      else requestAnimationFrame(draw);
    }

    draw() {
      if (this.pendingBlocks) {
        this.tail.insertAdjacentHTML("beforebegin", this.pendingBlocks);
        this.pendingBlocks = "";
      }
      if (this.newTail !== null) this.tail.innerHTML = this.newTail;
      if (this.pendingText) append(this.tail.querySelector("b") || this.tail, this.pendingText);
      this.newTail = null;
      this.pendingText = "";
      if (this.pendingThought) this.drawThought();
      tell(this.article, "answer:grew");
    }

    drawThought() {
      const think = this.article.querySelector(".think");
      const thought = think.querySelector(".thought");
      append(thought, this.pendingThought);
      this.pendingThought = "";
      think.hidden = false;
      const lines = thought.textContent.slice(-400).trim().split("\n");
      think.querySelector(".line").textContent = lines[lines.length - 1].slice(-120);
      if (!this.thinkingSince) this.startThinking();
    }

    startThinking() {
      if (this.thinkingSince) return;
      this.thinkingSince = Number((sessionStorage[`thinking:${this.id}`] ||= Date.now())); // a reload goes on counting
      this.thinkingTimer = setInterval(() => {
        const words = `${this.words("thinking")} ${this.thoughtFor()} s`;
        this.article.querySelector(".think .sum").textContent = words;
        if (this.status.dataset.phase === "thinking") this.say("thinking", words);
      }, 1000);
    }

    thoughtFor() {
      return Math.max(1, Math.round((Date.now() - this.thinkingSince) / 1000));
    }

    stopThinking() {
      if (!this.thinkingTimer) return;
      clearInterval(this.thinkingTimer);
      this.thinkingTimer = 0;
      this.article.querySelector(".think .sum").textContent = this.words("thought", { n: this.thoughtFor() });
      this.article.querySelector(".think .line").textContent = "";
    }

    // The words stand at the status row; `{n}` and the like are for numbers.
    words(name, numbers) {
      return this.status.dataset[name].replace(/{(\w+)}/g, (_, key) => numbers[key]);
    }

    onStatus({ phase, position, of = 0, eta_seconds: eta, tokens_per_second: rate, total, done = 0 }) {
      const share = total ? Math.floor((100 * done) / total) : null;
      let words = this.words(phase);
      if (position && phase === "waiting") words = this.words("place", { position, of: Math.max(of, position) });
      if (eta) words += eta < 90 ? this.words("about", { n: Math.ceil(eta) }) : this.words("minutes", { n: Math.round(eta / 60) });
      if (share !== null) words += ` ${share} %`;
      if (rate && phase === "writing") words += this.words("rate", { n: Math.round(rate) });
      if (phase === "thinking") {
        this.startThinking();
        words += ` ${this.thoughtFor()} s`;
      }
      this.say(phase, words, share);
    }

    say(phase, words = this.words(phase), share = null) {
      if (this.status.dataset.phase === "stopping") return; // until it has
      this.status.dataset.phase = phase;
      this.status.querySelector(".now").textContent = words;
      const bar = this.status.querySelector(".read");
      bar.hidden = phase !== "reading" || share === null;
      if (!bar.hidden) bar.value = share;
    }

    onDone(data) {
      const settled = data.html ? element(data.html) : null;
      if (!settled) {
        this.ask();
        return;
      }
      if (!data.snapshot) {
        this.pendingBlocks += data.blocks.join("");
        this.newTail = this.pendingText = "";
        this.draw();
        if (this.tail.parentElement.childElementCount - 1 !== data.num_blocks) return this.ask();
      }
      this.replaceBy(settled, !data.snapshot);
    }

    // The settled article takes over; the blocks shown stay the very same nodes, so a selection in them survives.
    replaceBy(settled, isSame = false) {
      const article = this.article;
      this.close();
      const shown = article.querySelector(".body");
      const wasOpen = article.querySelector(".think")?.open;
      const hadFocus = article.contains(document.activeElement);
      this.tail.remove();
      const body = settled.querySelector(".body");
      isSame ||= shown.innerHTML === body.innerHTML;
      for (const child of [...article.children]) if (child !== shown) child.remove();
      if (isSame) {
        let isAbove = true;
        for (const child of [...settled.children]) {
          if (child === body) isAbove = false;
          else if (isAbove) shown.before(child);
          else article.append(child);
        }
      } else {
        article.replaceChildren(...settled.children);
      }
      const think = article.querySelector(".think");
      if (think && wasOpen) think.open = true;
      article.className = `${settled.className} fresh`;
      for (const name of ["aria-busy", "data-generation", "data-cursor", "data-events", "data-self"]) article.removeAttribute(name);
      article.setAttribute("aria-label", settled.getAttribute("aria-label"));
      window.htmx?.process(article);
      if (hadFocus && !article.contains(document.activeElement)) {
        article.tabIndex = -1;
        article.focus({ preventScroll: true });
      }
      // Where the model's view begins may have moved.
      for (const cut of document.querySelectorAll(".cut")) cut.remove();
      const cut = article.querySelector("template[data-before]");
      if (cut) document.getElementById(cut.dataset.before)?.before(cut.content);
      const status = ["failed", "stopped"].find((name) => article.classList.contains(name)) || "done";
      tell(article, "answer:grew");
      tell(article, "answer:ended", { status });
    }
  }

  function parse(cursor) {
    const match = /^([0-9a-f]+):(\d+)$/.exec(cursor || "");
    return match ? [match[1], Number(match[2])] : ["", 0];
  }

  function append(target, text) {
    const last = target.lastChild;
    if (last?.nodeType === Node.TEXT_NODE) last.appendData(text);
    else target.append(text);
  }

  function element(html) {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    return holder.content.querySelector("article");
  }

  function tell(article, name, detail = {}) {
    article.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
  }

  // Follow what is on the page; let go of what has left it.
  function look() {
    for (const stream of [...streams.values()]) if (!stream.article.isConnected) stream.close();
    for (const article of document.querySelectorAll("article[data-generation]")) {
      if (streams.has(article.dataset.generation)) continue;
      streams.set(article.dataset.generation, new Stream(article));
      tell(article, "answer:began");
    }
  }

  function wake() {
    if (document.hidden) return;
    for (const stream of streams.values()) {
      const isOpen = stream.source && stream.source.readyState !== EventSource.CLOSED;
      if (!isOpen || Date.now() - stream.heardAt > STALE_MS) {
        stream.failures = 0;
        stream.heardAt = Date.now();
        stream.connect();
      }
    }
  }

  document.addEventListener("submit", ({ target }) => {
    const status = target.closest(".status");
    if (status) streams.get(status.parentElement.dataset.generation)?.say("stopping");
  });
  document.addEventListener("htmx:afterRequest", ({ detail: { elt, successful } }) => {
    const status = !successful && elt.closest?.(".status"); // nobody heard it: press again
    if (!status) return;
    status.dataset.phase = "";
    status.querySelector("button").disabled = false;
  });
  document.addEventListener("DOMContentLoaded", look);
  for (const name of ["htmx:afterSettle", "htmx:oobAfterSwap", "htmx:afterSwap"]) document.addEventListener(name, look);
  document.addEventListener("visibilitychange", wake);
  window.addEventListener("online", wake);
  window.addEventListener("pageshow", (event) => event.persisted && wake());
  window.addEventListener("pagehide", () => streams.forEach((stream) => stream.disconnect()));
  if (document.readyState !== "loading") look();
})();
