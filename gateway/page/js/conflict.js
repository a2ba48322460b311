// A version conflict: what stands there, what was wanted, and a choice.

import { h, icon, moment } from "./dom.js";

/** The panel, and a way to tell it that theirs changed again. `mine` and theirs: `{rating, note}`, null for none. */
export function conflictPanel({ number, mine, theirs, actorOf, keep, use }) {
  const their = h("div", { class: "side" });
  const update = (item) => {
    const actor = item && actorOf(item);
    their.replaceChildren(h("h4", {}, "Theirs"), ...said(item, "They removed the rating."),
      item ? h("p", { class: "hint" }, `${actor ? `${actor}, ` : ""}${moment(item.updatedAt)}`) : "",
      h("button", { type: "button", onclick: keep }, "Keep theirs"));
  };
  update(theirs);
  const element = h("section", { class: "conflict", "aria-label": `Conflict on answer ${number}` },
    h("h3", { tabindex: "-1" }, "Somebody was faster"),
    h("p", {}, "This answer’s rating changed before yours arrived. Nothing is overwritten until you choose."),
    h("div", { class: "sides" }, their,
      h("div", { class: "side" }, h("h4", {}, "Mine"), ...said(mine, "You wanted to remove the rating."),
        h("p", { class: "hint" }, "not saved yet"), h("button", { type: "button", class: "primary", onclick: use }, "Use mine"))));
  return { element, update };
}

function said(rating, nothing) {
  if (!rating) return [h("p", {}, nothing)];
  const name = rating.rating === "positive" ? "up" : "down";
  return [
    h("p", { class: `verdict ${name}` }, icon(name), rating.rating === "positive" ? "Positive" : "Negative"),
    rating.note === undefined ? h("p", { class: "hint" }, "without a note") : h("blockquote", {}, rating.note),
  ];
}
