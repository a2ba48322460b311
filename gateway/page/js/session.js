// One Session: its transcript, first screen first, and the ratings of its answers.

import { count, h, left, measure, moment, projectName, say, show } from "./dom.js";
import { Failure, read, request, revisionOf, segment, words } from "./api.js";
import { listen } from "./events.js";
import { Transcript } from "./transcript.js";

const NEAR_PX = 1500;

/** Shows a Session. The measure "transcript" is from the click to the first screen. */
export async function showSession(id, { signal, keys }) {
  left.opened = id;
  const place = `/sessions/${segment(id)}`;
  const view = new SessionView(id, place, signal);
  const ready = listen(`${place}/events`, signal, {
    onEvent: (event) => view.take(event), onReload: () => view.loadRatings().catch((failure) => view.fail(failure)),
  });
  const [summary, page] = await Promise.all([read(place, signal).catch(() => ({ sessionId: id })), read(`${place}/transcript`, signal)]);
  if (signal.aborted) return;
  view.open(summary, page);
  keys(view.keys());
  measure("transcript", "open");
  await ready;
  await view.loadRatings().catch((failure) => view.fail(failure));
}

class SessionView {
  constructor(id, place, signal) {
    this.id = id;
    this.place = place;
    this.signal = signal;
    this.items = null;
    this.revision = -1;
    this.transcript = new Transcript(place, (answer) => this.onAnswer(answer));
    this.loading = null;
  }

  open(summary, page) {
    const title = summary.title || summary.prompt || this.id;
    const parent = summary.parentSession ?? page.parentSession;
    this.progress = h("p", { class: "progress" });
    this.trouble = h("p", { class: "failed", role: "alert", hidden: true });
    this.more = h("button", { type: "button", class: "more", hidden: true, onclick: () => this.loadMore() }, "Show more");
    this.answers = summary.answers ?? null;
    show(title, h("div", { class: "session" },
      h("header", {},
        h("a", { class: "back", href: left.list }, "All Sessions"),
        h("h1", { tabindex: "-1" }, title),
        h("p", { class: "meta" },
          h("span", { title: page.session.cwd }, projectName(page.session.cwd)), h("span", {}, `begun ${moment(page.session.createdAt)}`),
          summary.model ? h("span", {}, summary.model) : null,
          page.subagent ? h("span", { class: "tag" }, "subagent") : null,
          h("span", { class: "id" }, this.id)),
        parent ? h("p", { class: "meta" }, "Forked from ", h("a", { href: `#/s/${encodeURIComponent(parent)}` }, parent),
          ". What was copied from there is marked; it is rated anew here.") : null,
        this.progress, this.trouble),
      this.transcript.element, this.more));
    this.add(page);
    new IntersectionObserver((seen) => {
      if (seen.some((one) => one.isIntersecting) && !this.more.hidden) this.loadMore();
    }, { rootMargin: `${NEAR_PX}px` }).observe(this.more);
  }

  add(page) {
    this.transcript.add(page.messages);
    this.next = page.next ?? null;
    this.more.hidden = this.next === null;
    this.more.textContent = "Show more";
    this.showProgress();
    // An observer tells of what comes near, not of what stays there.
    requestAnimationFrame(() => { if (this.isMoreNear()) this.loadMore(); });
  }

  isMoreNear() {
    return !this.signal.aborted && !this.more.hidden && this.more.getBoundingClientRect().top < innerHeight + NEAR_PX;
  }

  /** The next page; nothing while one is on its way. Whether there was one. */
  loadMore() {
    if (this.next === null) return Promise.resolve(false);
    this.loading ??= read(`${this.place}/transcript?after=${this.next}`, this.signal).then(
      (page) => { this.add(page); return true; },
      (failure) => { this.failRest(failure); return false; },
    ).finally(() => { this.loading = null; });
    return this.loading;
  }

  failRest(failure) {
    if (this.signal.aborted) return;
    if (failure instanceof Failure && failure.isRetryable) {
      this.more.textContent = `${words(failure)} Show more`;
      say(words(failure));
      return;
    }
    this.next = null;
    this.more.replaceWith(h("p", { class: "failed rest", role: "alert" }, `Here the transcript stops. ${words(failure)}`));
  }

  onAnswer(answer) {
    answer.rating.place = this.place;
    answer.rating.onChange = () => this.showProgress();
    if (this.items) answer.rating.load(this.items.get(answer.messageId) ?? null, this.revision);
  }

  async loadRatings() {
    const known = this.revision < 0 ? "" : `?atLeast=${this.revision}`;
    const response = await request(`${this.place}/feedback${known}`, { signal: this.signal });
    const { items } = await response.json(), revision = revisionOf(response);
    if (revision < this.revision) { await this.loadRatings(); return; } // events came while it was on its way
    this.revision = Math.max(this.revision, revision || 0);
    this.items = new Map(items.map((item) => [item.messageId, item]));
    for (const answer of this.transcript.answers) answer.rating.load(this.items.get(answer.messageId) ?? null, this.revision);
    this.trouble.hidden = true;
    this.showProgress();
  }

  fail(failure) {
    if (this.signal.aborted || failure.name === "AbortError") return;
    this.trouble.replaceChildren(`The ratings could not be loaded. ${words(failure)} `,
      h("button", { type: "button", onclick: () => this.loadRatings().catch((again) => this.fail(again)) }, "Try again"));
    this.trouble.hidden = false;
  }

  take(event) {
    const { messageId, actor, revision } = event;
    if (event.type !== "feedback.put" && event.type !== "feedback.deleted") return;
    this.revision = Math.max(this.revision, revision);
    const item = event.item ?? null;
    if (item) this.items?.set(messageId, item); else this.items?.delete(messageId);
    const answer = this.transcript.answers.find((one) => one.messageId === messageId);
    if (answer?.rating.hear(item, actor ?? null, revision)) {
      say(`${actor ?? "Somebody"} ${item ? `rated answer ${answer.number} ${item.rating}` : `took the rating of answer ${answer.number} back`}.`);
    }
    this.showProgress();
  }

  showProgress() {
    if (!this.items || !this.progress) return;
    const shown = this.transcript.answers.filter((answer) => answer.rating.item).length;
    const rated = this.next === null ? shown : this.items.size;
    const all = this.next === null ? this.transcript.answers.length : (this.answers ?? this.transcript.answers.length);
    this.progress.textContent = all ? `${rated} of ${count(all, "answer")} rated` : "Nothing here can be rated.";
  }

  keys() {
    const at = (action) => () => {
      const answer = this.transcript.current;
      if (answer) action(answer.rating); else say("Choose an answer first, with j and k.");
    };
    return {
      j: () => this.move(1), k: () => this.move(-1),
      "+": at((rating) => rating.rate("positive")), "=": at((rating) => rating.rate("positive")),
      "-": at((rating) => rating.rate("negative")), n: at((rating) => rating.openNote()),
      Escape: () => { location.hash = left.list; },
    };
  }

  async move(by) {
    if (this.transcript.move(by)) return;
    if (by > 0 && await this.loadMore()) this.move(by);
    else say(by > 0 ? "This is the last answer." : "This is the first answer.");
  }
}
