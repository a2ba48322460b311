// The list of Sessions: search, filters, and what is rated in each.

import { count, debounced, gathered, h, icon, left, measure, projectName, say, show, when } from "./dom.js";
import { read, words } from "./api.js";
import { listen } from "./events.js";

const FILTERS = [["", "All"], ["unrated", "Unrated"], ["negative", "Negative"], ["noted", "With notes"]];
const READ_ERRORS = {
  LogCorrupt: "The log is damaged.", LogUnreadable: "The log cannot be read.", LogAmbiguous: "Two logs bear this id.",
  LogFormatUnsupported: "The log is of a newer format.", "session-not-found": "The log has no complete header.",
};
const TYPING_MS = 120;
const QUIET_MS = 300;
const READING_MS = 700;

/** Shows the list that `given` asks for (text, rated, project, model). */
export async function showSessions(given, { signal, keys }) {
  const view = new List(given, signal);
  show("Sessions", view.element);
  keys(view.keys());
  if (given.has("search")) view.search.focus();
  // Opened first, so that nothing is missed between the two.
  listen("/events", signal, { onEvent: () => view.refreshSoon(), onReload: () => view.refreshSoon() });
  signal.addEventListener("abort", () => view.stop());
  left.list = given.has("search") ? "#/" : location.hash || "#/";
  await Promise.all([view.load().then(() => measure("list", "open")), view.loadFacets()]);
  // Back where it was left, for who goes through the list by keys.
  if (left.opened !== null && !given.has("search")) view.rows.get(left.opened)?.querySelector("a").focus();
}

class List {
  constructor(given, signal) {
    this.asked = { text: given.get("text") ?? "", rated: given.get("rated") ?? "" };
    for (const name of ["project", "model"]) if (given.has(name)) this.asked[name] = given.get(name);
    this.signal = signal;
    this.rows = new Map();
    this.asking = null;
    this.next = null;
    this.loadSoon = debounced(() => this.change(), TYPING_MS);
    this.refreshSoon = gathered(() => this.guarded(() => this.refresh()), QUIET_MS);
    this.build();
  }

  build() {
    this.search = h("input", {
      type: "search", id: "search", placeholder: "Title, prompt, project or id", autocomplete: "off", spellcheck: "false",
      oninput: () => { performance.mark("typed"); this.loadSoon(); }, onkeydown: (event) => this.leaveSearch(event),
    });
    this.search.value = this.asked.text;
    this.project = h("select", { id: "project", onchange: () => this.change() }, h("option", { value: "any" }, "All projects"));
    this.model = h("select", { id: "model", onchange: () => this.change() }, h("option", { value: "any" }, "All models"));
    this.filters = h("fieldset", { class: "chips", onchange: () => this.change() }, h("legend", { class: "unseen" }, "Ratings"),
      FILTERS.map(([value, name]) => h("label", {}, h("input", {
        type: "radio", name: "rated", value, checked: value === this.asked.rated,
      }), h("span", {}, name))));
    this.total = h("p", { class: "total", role: "status" });
    this.list = h("ol", { class: "sessions", "aria-label": "Sessions" });
    this.more = h("button", { type: "button", class: "more", hidden: true, onclick: () => this.guarded(() => this.loadMore()) }, "Show more");
    this.element = h("div", { class: "wide" }, h("h1", {}, "Sessions"),
      h("form", { class: "asking", role: "search", "aria-label": "Find Sessions", onsubmit: (event) => event.preventDefault() },
        h("label", { class: "unseen", for: "search" }, "Search Sessions"), this.search, this.filters,
        h("label", { class: "unseen", for: "project" }, "Project"), this.project,
        h("label", { class: "unseen", for: "model" }, "Model"), this.model),
      this.total, this.list, this.more);
    new IntersectionObserver((seen) => {
      if (seen.some((one) => one.isIntersecting) && !this.more.hidden) this.more.click();
    }, { rootMargin: "600px" }).observe(this.more);
  }

  stop() { this.loadSoon.cancel(); this.refreshSoon.cancel(); this.asking?.abort(); }

  keys() {
    return {
      j: () => this.move(1), k: () => this.move(-1),
      "/": () => { this.search.focus(); this.search.select(); },
    };
  }

  leaveSearch(event) {
    if (event.key === "Escape" || event.key === "Enter") {
      event.preventDefault();
      if (event.key === "Escape" && this.search.value) { this.search.value = ""; this.change(); } else this.move(1);
    }
  }

  move(by) {
    const links = [...this.list.querySelectorAll("a.title")];
    const at = links.findIndex((link) => link === document.activeElement);
    const to = at < 0 ? 0 : Math.min(Math.max(at + by, 0), links.length - 1);
    links[to]?.focus();
    links[to]?.closest("li").scrollIntoView({ block: "nearest" });
  }

  /** What is asked for changed: another list, and an address that leads back to it. */
  change() {
    this.asked = { text: this.search.value.trim(), rated: this.filters.querySelector("input:checked").value };
    for (const select of [this.project, this.model]) if (select.value !== "any") this.asked[select.id] = select.value.slice(1);
    const address = new URLSearchParams(Object.entries(this.asked).filter(([name, value]) => value || !["text", "rated"].includes(name)));
    left.list = `#/${address.size ? `?${address}` : ""}`;
    history.replaceState(null, "", left.list);
    this.guarded(() => this.load().then(() => measure("search", "typed")));
  }

  async guarded(action) {
    try {
      await action();
    } catch (failure) {
      if (failure.name === "AbortError" || this.signal.aborted) return;
      this.total.textContent = words(failure);
      this.total.classList.add("failed");
    }
  }

  path(after) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(this.asked)) if (value || name === "project" || name === "model") query.set(name, value);
    if (after) query.set("after", after);
    return `/sessions?${query}`;
  }

  async ask(after) {
    this.asking?.abort();
    this.asking = new AbortController();
    return read(this.path(after), this.asking.signal);
  }

  async load() {
    const page = await this.ask(null);
    this.showPage(page, []);
    this.list.dataset.asked = this.path(null);
    if (page.reading) this.refreshSoonWhileReading();
  }

  async loadMore() {
    const page = await this.ask(this.next);
    this.showPage(page, [...this.list.children]);
  }

  /** The first page anew, in place: nobody's focus moves, and what was loaded behind it stays. */
  async refresh() {
    const asked = this.path(null), page = await read(asked, this.signal);
    if (asked !== this.path(null)) return; // something else is asked for by now
    const shown = new Set(page.sessions.map((one) => one.session.sessionId));
    const isLonger = this.list.children.length > page.sessions.length;
    const kept = isLonger ? [...this.list.children].slice(page.sessions.length).filter((row) => !shown.has(row.dataset.id)) : [];
    const next = isLonger ? this.next : page.next;
    this.showPage(page, [], kept);
    this.next = next ?? null;
    this.more.hidden = !this.next;
    if (page.reading) this.refreshSoonWhileReading();
    else if (this.wasReading) { this.wasReading = false; await this.loadFacets(); }
  }

  refreshSoonWhileReading() {
    this.wasReading = true;
    setTimeout(() => { if (!this.signal.aborted) this.refreshSoon(); }, READING_MS);
  }

  showPage(page, before, behind = []) {
    const focused = document.activeElement?.closest?.("li")?.dataset.id;
    const rows = page.sessions.map((one) => this.row(one));
    this.list.replaceChildren(...before, ...rows, ...behind);
    this.rows = new Map([...this.list.children].map((row) => [row.dataset.id, row]));
    if (focused !== undefined) this.rows.get(focused)?.querySelector("a").focus({ preventScroll: true });
    this.next = page.next ?? null;
    this.more.hidden = !this.next;
    this.total.classList.remove("failed");
    const found = count(page.total, "Session");
    this.total.textContent = page.reading ? `${found} so far: logs are being read …`
      : page.total ? `${found}${page.incomplete ? ". Some logs could not be looked at; the gateway’s log says which." : ""}` : "No Session matches. Try fewer words, or another filter.";
  }

  /** A row for this Session; the one that is there already, if it says the same. */
  row({ session, feedback }) {
    const saying = JSON.stringify([session, feedback]);
    const known = this.rows.get(session.sessionId);
    if (known?.saying === saying) return known;
    const title = session.title || session.prompt || session.sessionId;
    const row = h("li", { "data-id": session.sessionId },
      h("a", { class: "title", href: `#/s/${encodeURIComponent(session.sessionId)}` }, title),
      counts(feedback, session.answers ?? 0),
      session.title && session.prompt ? h("p", { class: "prompt" }, session.prompt) : null,
      h("p", { class: "meta" },
        h("span", { title: session.cwd }, projectName(session.cwd)), session.model ? h("span", {}, session.model) : null,
        h("span", {}, count(session.answers ?? 0, "answer")), session.subagent ? h("span", { class: "tag" }, "subagent") : null,
        session.parentSession ? h("span", { class: "tag" }, "fork") : null, h("span", {}, when(session.updatedAt))),
      session.error ? h("p", { class: "failed" }, READ_ERRORS[session.error.code] ?? "The log cannot be read.") : null);
    row.saying = saying;
    return row;
  }

  async loadFacets() {
    const facets = await read("/facets", this.signal);
    fill(this.project, facets.projects, this.asked.project, projectName);
    fill(this.model, facets.models, this.asked.model, (name) => name ?? "No model");
    this.filters.disabled = !facets.feedback;
    if (!facets.feedback) {
      this.filters.title = "Ratings are not known here: the gateway does not see the store (setting sidecar_url).";
      say(this.filters.title);
    }
  }
}

function counts(feedback, answers) {
  if (!feedback || !(feedback.positive || feedback.negative)) {
    return h("span", { class: "counts none" }, feedback && answers ? "unrated" : "");
  }
  const one = (kind, number, what) => (number ? h("span", { class: kind, title: what }, icon(kind), h("span", { class: "unseen" }, `${what}: `), String(number)) : null);
  return h("span", { class: "counts" }, one("up", feedback.positive, "positive"), one("down", feedback.negative, "negative"),
    one("note", feedback.notes, "with notes"));
}

function fill(select, found, chosen, nameOf) {
  select.replaceChildren(select.options[0], ...found.map(({ name = null, sessions }) =>
    h("option", { value: `=${name ?? ""}`, title: name ?? "" }, `${nameOf(name)} (${sessions})`)));
  if (chosen !== undefined) select.value = `=${chosen}`;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}
