// Follows answers that are being written: one EventSource per generation, as long as its article is on the page.
//
// Owns the cursor, reconnection, and what a live article shows. The server sends HTML: finished blocks that never
// change, the look of the tail after them, and plain text to add to that (in its `b`); nothing is parsed here. An end
// of the stream without `done` means: connect again after the cursor, which is the id of the last event. Tells others
// by events that bubble from the article: `answer:began`, `answer:grew`, `answer:ended` {status}. Knows nothing of
// scrolling or of the composer.
const FIRST_DELAY_MS = 500;
const MAX_DELAY_MS = 15000;
const ASK_AFTER_FAILURES = 2; // then ask for the message itself: it may have ended, or we are signed out
const STALE_MS = 40000; // a tab that slept this long connects again rather than trusting an open socket

const on = addEventListener;
const streams = new Map(); // generation id -> Stream

class Stream {
  constructor(article) {
    this.article = article;
    this.id = article.dataset.generation;
    this.cursor = article.dataset.cursor;
    this.failures = 0;
    this.tail = article.querySelector(".tail");
    this.status = article.querySelector(".status");
    this.told = ""; // the tail's HTML, as the server last told it
    this.forget();
    if (this.status.dataset.phase === "thinking") this.startThinking();
    article.classList.add("fresh"); // long code that was seen growing is not folded
    this.connect();
  }

  connect() {
    this.disconnect();
    this.heardAt = Date.now();
    this.source = new EventSource(`${this.article.dataset.events}?as=page&after=${this.cursor}`);
    this.source.onerror = () => this.onError();
    // `again`: the server ends every stream after so many bytes.
    const takers = { status: this.onStatus, delta: this.onDelta, reset: this.clear, done: this.onDone, again: this.connect };
    for (const [name, take] of Object.entries(takers)) {
      this.source.addEventListener(name, (event) => {
        this.heardAt = Date.now();
        this.failures = 0;
        this.cursor = event.lastEventId || this.cursor;
        take.call(this, JSON.parse(event.data));
      });
    }
  }

  disconnect() {
    clearTimeout(this.timer);
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
    if (this.failures >= ASK_AFTER_FAILURES) {
      this.say("reconnecting");
      this.ask();
    }
    const delay = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** (this.failures - 1));
    this.timer = setTimeout(() => this.connect(), delay * (0.6 + 0.8 * Math.random()));
  }

  // The stream does not come up: look at the message itself.
  async ask() {
    try {
      const answer = await fetch(this.article.dataset.self, { headers: { "HX-Request": "true" }, cache: "no-store" });
      const settled = answer.ok && element(await answer.text());
      if (this.isOver) return;
      if (answer.status === 401) this.leave("out");
      if (answer.status === 404) this.leave("gone");
      if (settled && !settled.dataset.generation) this.replaceBy(settled);
    } catch { /* away: the next attempt comes anyway */ }
  }

  leave(why) {
    this.status.dataset.phase = "";
    this.say("reconnecting", this.status.dataset[why]);
    this.close();
  }

  // What is told and not yet drawn.
  forget() {
    this.blocks = this.text = this.thought = "";
    this.newTail = null;
  }

  // Another worker begins the answer anew.
  clear() {
    this.told = "";
    this.forget();
    this.tail.parentElement.replaceChildren(this.tail);
    this.tail.textContent = "";
    const think = this.article.querySelector(".think");
    think.querySelector(".thought").textContent = "";
    think.hidden = true;
  }

  onDelta({ html, keep = 0, cut = 0, grow = "", reasoning = "" }) {
    if (html !== undefined) {
      const whole = this.told.slice(0, keep) + html;
      this.blocks += whole.slice(0, cut);
      this.told = this.newTail = whole.slice(cut);
      this.text = "";
    }
    this.text += grow;
    this.thought += reasoning;
    if (grow || html) this.stopThinking();
    this.planDraw();
  }

  // At most once a frame; a hidden tab gets no frames, so a timer stands in.
  planDraw() {
    if (this.isDrawPlanned) return;
    this.isDrawPlanned = true;
    const draw = () => this.isOver || this.draw();
    if (document.hidden) setTimeout(draw, 250);
    else requestAnimationFrame(draw);
  }

  draw() {
    this.isDrawPlanned = false;
    this.tail.insertAdjacentHTML("beforebegin", this.blocks);
    if (this.newTail !== null) this.tail.innerHTML = this.newTail;
    if (this.text) append(this.tail.querySelector("b") || this.tail, this.text);
    if (this.thought) this.drawThought();
    this.forget();
    htmx.trigger(this.article, "answer:grew");
  }

  drawThought() {
    const think = this.article.querySelector(".think");
    const thought = think.querySelector(".thought");
    append(thought, this.thought);
    think.hidden = false;
    think.querySelector(".line").textContent = thought.textContent.slice(-400).trim().split("\n").pop().slice(-120);
    this.startThinking();
  }

  startThinking() {
    if (this.thinkingSince) return;
    this.thinkingSince = Number((sessionStorage[`thinking:${this.id}`] ||= Date.now())); // a reload goes on counting
    this.thinkingTimer = setInterval(() => {
      this.article.querySelector(".think .sum").textContent = this.thinking();
      if (this.status.dataset.phase === "thinking") this.say("thinking", this.thinking());
    }, 1000);
  }

  thoughtFor() {
    return Math.max(1, Math.round((Date.now() - this.thinkingSince) / 1000));
  }

  thinking() {
    return `${this.status.dataset.thinking} ${this.thoughtFor()} s`;
  }

  stopThinking() {
    if (!this.thinkingTimer) return;
    clearInterval(this.thinkingTimer);
    this.thinkingTimer = 0;
    this.article.querySelector(".think .sum").textContent = this.status.dataset.thought.replace("{n}", this.thoughtFor());
    this.article.querySelector(".think .line").textContent = "";
  }

  onStatus({ phase, text, percent }) {
    if (phase === "thinking") this.startThinking();
    this.say(phase, phase === "thinking" ? this.thinking() : text, percent);
  }

  // Words that are none of the server's stand at the status row.
  say(phase, words = this.status.dataset[phase], percent = null) {
    if (this.status.dataset.phase === "stopping") return; // until it has
    this.status.dataset.phase = phase;
    this.status.querySelector(".now").textContent = words;
    const bar = this.status.querySelector(".read");
    bar.hidden = percent === null;
    bar.value = percent || 0;
  }

  onDone({ html, snapshot, blocks, num_blocks: numBlocks }) {
    if (!snapshot) {
      this.blocks += blocks.join("");
      this.newTail = this.text = "";
      this.draw();
      if (this.tail.parentElement.childElementCount - 1 !== numBlocks) return this.ask();
    }
    this.replaceBy(element(html), !snapshot);
  }

  // The settled article takes over; the blocks shown stay the very same nodes, so a selection in them survives.
  replaceBy(settled, isSame = false) {
    const { article } = this;
    this.close();
    const shown = article.querySelector(".body");
    const wasOpen = article.querySelector(".think").open;
    const hadFocus = article.contains(document.activeElement);
    this.tail.remove();
    const body = settled.querySelector(".body");
    if (isSame || shown.innerHTML === body.innerHTML) {
      for (const child of [...article.children]) if (child !== shown) child.remove();
      const children = [...settled.children];
      const place = children.indexOf(body);
      shown.before(...children.slice(0, place));
      shown.after(...children.slice(place + 1));
    } else article.replaceChildren(...settled.children);
    const think = article.querySelector(".think");
    if (think && wasOpen) think.open = true;
    article.className = `${settled.className} fresh`;
    for (const name of ["aria-busy", "data-generation", "data-cursor", "data-events", "data-self"]) article.removeAttribute(name);
    article.ariaLabel = settled.ariaLabel;
    htmx.process(article);
    if (hadFocus && !article.contains(document.activeElement)) {
      article.tabIndex = -1;
      article.focus({ preventScroll: true });
    }
    // Where the model's view begins may have moved.
    for (const cut of htmx.findAll(".cut")) cut.remove();
    const cut = article.querySelector("template[data-before]");
    if (cut) document.getElementById(cut.dataset.before)?.before(cut.content);
    const status = ["failed", "stopped"].find((name) => article.classList.contains(name)) || "done";
    htmx.trigger(article, "answer:grew");
    htmx.trigger(article, "answer:ended", { status });
  }
}

function append(target, text) {
  const last = target.lastChild;
  if (last?.nodeType === Node.TEXT_NODE) last.appendData(text);
  else target.append(text);
}

const element = (html) => new DOMParser().parseFromString(html, "text/html").querySelector("article");

// Follow what is on the page; let go of what has left it.
function look() {
  for (const stream of streams.values()) if (!stream.article.isConnected) stream.close();
  for (const article of htmx.findAll("article[data-generation]")) {
    if (streams.has(article.dataset.generation)) continue;
    streams.set(article.dataset.generation, new Stream(article));
    htmx.trigger(article, "answer:began");
  }
}

function wake() {
  if (document.hidden) return;
  for (const stream of streams.values()) {
    if (stream.source && Date.now() - stream.heardAt < STALE_MS) continue;
    stream.failures = 0;
    stream.connect();
  }
}

on("submit", ({ target }) => {
  const status = target.closest(".status");
  if (status) streams.get(status.parentElement.dataset.generation)?.say("stopping");
});
on("htmx:afterRequest", ({ detail: { elt, successful } }) => {
  const status = !successful && elt.closest(".status"); // nobody heard it: press again
  if (!status) return;
  status.dataset.phase = "";
  status.querySelector("button").disabled = false;
});
for (const name of ["htmx:afterSwap", "htmx:oobAfterSwap"]) on(name, look);
for (const name of ["visibilitychange", "online", "pageshow"]) on(name, wake);
on("pagehide", () => streams.forEach((stream) => stream.disconnect()));
look();
