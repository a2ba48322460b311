// Messages of a transcript, as they are read: what was said, with tools, thoughts and system prompts folded away.

import { clock, h, moment } from "./dom.js";
import { read, words } from "./api.js";
import { safeHtml } from "./markup.js";
import { Rating } from "./rating.js";

const SOURCES = { plugin: "put in by a plug-in", system: "put in by the system" };

/** The messages, and which of them are answers. `onAnswer` is told of each answer before it is shown. */
export class Transcript {
  constructor(place, onAnswer) {
    this.place = place;
    this.onAnswer = onAnswer;
    this.answers = [];
    this.current = null;
    this.results = new Map();
    this.element = h("div", { class: "transcript" });
    this.element.addEventListener("focusin", (event) => this.follow(event.target));
  }

  add(messages) {
    for (const message of messages) locate(message.parts);
    const nodes = messages.map((message) => this.message(message));
    this.element.append(...nodes.filter(Boolean));
  }

  /** Focuses the next answer, or the one before; whether there is one. */
  move(by) {
    const at = this.current ? this.answers.indexOf(this.current) + by : this.firstInView(by);
    const answer = this.answers[at];
    if (!answer) return false;
    for (let folded = answer.element.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
    answer.element.focus({ preventScroll: true });
    answer.element.scrollIntoView({ block: answer.element.offsetHeight > innerHeight * 0.7 ? "start" : "center" });
    return true;
  }

  firstInView(by) {
    const at = this.answers.findIndex((answer) => answer.element.getBoundingClientRect().bottom > 0);
    return at < 0 ? this.answers.length - 1 : by > 0 ? at : Math.max(at - 1, 0);
  }

  follow(target) {
    const answer = this.answers.find((one) => one.element.contains(target));
    if (!answer || answer === this.current) return;
    this.current?.element.classList.remove("current");
    this.current = answer;
    answer.element.classList.add("current");
  }

  message(message) {
    if (message.role === "tool") return this.toolMessage(message);
    const body = h("div", { class: "body" }, this.parts(message));
    const node = message.eligible && message.messageId !== undefined ? this.answer(message, body) : this.plain(message, body);
    return message.replaced ? replaced(message, node) : node;
  }

  plain(message, body) {
    if (message.role === "system" || message.role === "developer") {
      const name = message.role === "system" ? "System prompt" : "Developer prompt";
      return h("details", { class: "fold system" }, h("summary", {}, name), body);
    }
    const who = message.role === "user" ? "User" : "Assistant";
    return h("section", { class: `message ${message.role}`, "aria-label": `${who}, ${clock(message.time)}` }, head(who, message), body);
  }

  answer(message, body) {
    const number = this.answers.length + 1;
    const who = `Answer ${number}`;
    const rating = new Rating(message.messageId, number);
    const element = h("article", { class: "message assistant answer", tabindex: "-1", "aria-label": [who, message.model, clock(message.time)].filter(Boolean).join(", ") },
      head(who, message), body, rating.element);
    const answer = { messageId: message.messageId, number, rating, element };
    this.answers.push(answer);
    this.onAnswer(answer);
    return element;
  }

  /** A tool's answer goes into the fold of its call, where that is shown. */
  toolMessage(message) {
    const loose = message.parts.filter((part) => !this.results.has(part.callId) || message.replaced);
    for (const part of message.parts.filter((one) => !loose.includes(one))) {
      const call = this.results.get(part.callId);
      call.append(...this.result(part, message));
      call.parentElement.querySelector("summary").append(part.isError ? h("span", { class: "failed" }, "failed") : "");
    }
    if (!loose.length) return null;
    const node = h("section", { class: "message tool", "aria-label": `Tool, ${clock(message.time)}` }, loose.map((part) =>
      part.kind === "tool-result" ? fold("Tool result", part.isError ? "failed" : "", this.result(part, message)) : this.part(part, message)));
    return message.replaced ? replaced(message, node) : node;
  }

  parts(message) { return message.parts.map((part) => this.part(part, message)); }

  part(part, message) {
    switch (part.kind) {
      case "text": return part.html === undefined ? this.raw(part, message) : prose(part.html);
      case "reasoning": return fold("Thinking", "", [this.raw(part, message)]);
      case "tool-call": return this.call(part, message);
      case "tool-result": return fold("Tool result", part.isError ? "failed" : "", this.result(part, message));
      case "attachment": return h("p", { class: "attachment" }, `Attached: ${part.name}`, part.mediaType ? ` (${part.mediaType})` : "");
      case "more": return h("p", { class: "attachment" }, `${part.name} more parts, which this page does not show.`);
      default: return h("p", { class: "attachment" }, part.name ? `A part that this page does not show: ${part.name}` : "A part that cannot be shown.");
    }
  }

  call(part, message) {
    const inside = h("div", { class: "inside" }, this.raw({ ...part, text: readable(part) }, message));
    const node = h("details", { class: "fold tool-call" },
      h("summary", {}, h("span", { class: "what" }, "Tool"), h("code", {}, part.name), h("span", { class: "hint" }, gist(part.text))), inside);
    if (part.callId) this.results.set(part.callId, inside);
    return node;
  }

  result(part, message) {
    const inner = (part.parts ?? []).map((one) => this.part(one, message));
    return [h("p", { class: "label" }, part.isError ? "failed with" : "answered"), ...(inner.length ? inner : [h("p", { class: "hint" }, "nothing")])];
  }

  /** Text as it is. Of what is long there is a beginning; all of it on request. */
  raw(part, message) {
    const text = h("pre", { class: "raw", tabindex: "0" }, part.text ?? "");
    const hint = part.plain ? h("p", { class: "hint" }, "Shown as plain text: it is too long, or too intricate, to be laid out.") : null;
    if (part.cut === undefined) return hint ? h("div", {}, hint, text) : text;
    const button = h("button", { type: "button" }, `Show all ${part.cut.toLocaleString()} characters`);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        const whole = await read(`${this.place}/transcript/${message.seq}`);
        text.textContent = partAt(whole.parts, part.path)?.text ?? text.textContent;
        text.focus();
        button.remove();
      } catch (failure) {
        button.disabled = false;
        button.textContent = `Try again. ${words(failure)}`;
      }
    });
    return h("div", {}, hint, text, button);
  }
}

function head(who, message) {
  const marks = [
    message.inherited && "copied from the Session this was forked from", message.replacement && "stands for earlier messages (compacted)",
    message.interrupted && "interrupted", SOURCES[message.source],
  ].filter(Boolean);
  return h("header", {}, h("span", { class: "who" }, who), message.role === "assistant" && message.model ? h("span", { class: "model" }, message.model) : null,
    message.time === undefined ? null : h("span", { class: "time", title: moment(message.time) }, clock(message.time)),
    marks.map((mark) => h("span", { class: "tag" }, mark)));
}

function replaced(message, node) {
  const at = message.replaced.at === undefined ? "" : ` at ${clock(message.replaced.at)}`;
  const who = message.role === "user" ? "User" : message.role === "assistant" ? "Assistant" : "Tool";
  return h("details", { class: "fold replaced" }, h("summary", {}, h("span", { class: "what" }, who), `replaced${at}: the model no longer saw this`), node);
}

function fold(name, mark, children) {
  return h("details", { class: "fold" }, h("summary", {}, h("span", { class: "what" }, name), mark ? h("span", { class: "failed" }, mark) : null), h("div", { class: "inside" }, children));
}

function prose(html) {
  const node = h("div", { class: "prose" });
  node.innerHTML = safeHtml(html);
  for (const block of node.querySelectorAll("pre")) {
    block.tabIndex = 0;
    const language = /language-(\S+)/.exec(block.firstElementChild?.className ?? "")?.[1];
    if (language) block.dataset.language = language;
  }
  for (const table of node.querySelectorAll("table")) {
    const frame = h("div", { class: "frame", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  return node;
}

/** Arguments are JSON as the model wrote it, which may be broken: then they are shown as they are. */
function readable(part) {
  if (part.cut !== undefined) return part.text;
  try { return JSON.stringify(JSON.parse(part.text), null, 2); } catch { return part.text; }
}

function gist(text) {
  try {
    const first = Object.values(JSON.parse(text)).find((value) => typeof value === "string");
    return first?.split("\n")[0].slice(0, 120) ?? "";
  } catch { return ""; }
}

/** Notes at each part where in its message it stands. */
function locate(parts, path = []) {
  for (const [at, part] of (parts ?? []).entries()) {
    part.path = [...path, at];
    locate(part.parts, part.path);
  }
}

/** The part at such a place: a message has the same parts, in the same order, whether they are cut or not. */
function partAt(parts, [at, ...deeper]) {
  const part = parts?.[at];
  return deeper.length ? partAt(part?.parts, deeper) : part;
}
