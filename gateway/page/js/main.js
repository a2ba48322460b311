// Which page is shown, by the address behind its #: `#/`, `#/s/<id>`, `#/overview`; and keys that work everywhere.

import { byId, h, main, say, show } from "./dom.js";
import { words } from "./api.js";
import { showSessions } from "./sessions.js";
import { showSession } from "./session.js";
import { showOverview } from "./overview.js";

const KEYS = "session-feedback.keys";

let leaving = new AbortController();
let isFirst = true;
let keys = {};

function route() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  const named = /^\/s\/([^/]*)$/.exec(path);
  if (named) {
    try { return ["sessions", (page) => showSession(decodeURIComponent(named[1]), page)]; } catch { /* no such escape */ }
  }
  if (path === "/overview") return ["overview", showOverview];
  return ["sessions", (page) => showSessions(new URLSearchParams(query), page)];
}

async function open() {
  performance.mark("open");
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [name, page] = route();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  keys = {};
  window.scrollTo(0, 0);
  try {
    const opening = page({ signal, keys: (given) => { if (!signal.aborted) keys = given; } });
    await opening;
    // What had the focus is gone with the page before.
    if (!isFirst && !signal.aborted && document.activeElement === document.body) main().focus({ preventScroll: true });
    isFirst = false;
  } catch (failure) {
    if (signal.aborted || failure.name === "AbortError") return;
    show("It did not work", h("div", { class: "failure page", role: "alert" },
      h("h1", {}, "This could not be shown"), h("p", {}, words(failure)),
      h("div", { class: "actions" },
        h("button", { type: "button", class: "primary", onclick: open }, "Try again"), h("a", { href: "#/" }, "All Sessions"))));
    say(words(failure));
  }
}

const isWriting = (node) => node?.closest?.("textarea, select, input:not([type=radio]), [contenteditable]");

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isWriting(event.target) && event.key !== "Escape") return;
  // Who dictates, or types where nothing listens, can switch them off (WCAG 2.1.4).
  if (!byId("keys-on").checked && event.key.length === 1) return;
  if (event.key === "?") { byId("help").showModal(); event.preventDefault(); return; }
  const action = keys[event.key];
  if (action) { event.preventDefault(); action(event); return; }
  if (event.key === "/") { event.preventDefault(); location.hash = "#/?search"; }
}

byId("keys-on").checked = localStorage.getItem(KEYS) !== "off";
byId("keys-on").addEventListener("change", ({ target }) => localStorage.setItem(KEYS, target.checked ? "on" : "off"));
window.addEventListener("hashchange", open);
document.addEventListener("keydown", onKey);
byId("help-open").addEventListener("click", () => byId("help").showModal());
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main().focus(); });
open();
