// The rating of one answer: thumbs, a note, what goes wrong with them, and the way through a conflict.
// Every change names the version that it replaces; nothing of somebody else's is ever overwritten unseen.

import { h, icon, moment, say } from "./dom.js";
import { Failure, commandId, request, revisionOf, segment, words } from "./api.js";
import { conflictPanel } from "./conflict.js";

const NAMES = { positive: "positive", negative: "negative" };
const same = (one, other) => one?.rating === other?.rating && one?.note === other?.note;

export class Rating {
  constructor(messageId, number) {
    this.messageId = messageId;
    this.number = number;
    this.place = "";
    this.item = null;
    this.isLoaded = false;
    this.revision = -1; // the Session's, of what is shown: answers and events may overtake each other
    this.late = null;
    this.actors = new Map();
    this.base = null;
    this.conflict = null;
    this.onChange = () => {};
    this.build();
  }

  build() {
    const about = `answer ${this.number}`;
    const thumb = (rating, name) => h("button", {
      type: "button", class: `thumb ${name}`, "aria-pressed": "false", "aria-label": `Rate ${about} ${NAMES[rating]}`,
      title: rating === "positive" ? "Positive (+)" : "Negative (-)", onclick: () => this.rate(rating),
    }, icon(name));
    this.thumbs = { positive: thumb("positive", "up"), negative: thumb("negative", "down") };
    this.noteButton = h("button", { type: "button", class: "quiet", "aria-expanded": "false", title: "Note (n)", onclick: () => this.openNote() });
    this.removeButton = h("button", { type: "button", class: "quiet", "aria-label": `Remove the rating of ${about}`, onclick: () => this.remove() }, "Remove");
    this.state = h("span", { class: "state" });
    this.note = h("p", { class: "note", hidden: true });
    this.trouble = h("div", { class: "failure", hidden: true });
    this.panel = h("div", {});
    this.buildEditor(about);
    this.element = h("section", { class: "rating", "aria-label": `Rating of ${about}` },
      h("div", { class: "bar" }, this.thumbs.positive, this.thumbs.negative, this.noteButton, this.removeButton, this.state),
      this.note, this.editor, this.trouble, this.panel);
    this.show();
  }

  buildEditor(about) {
    this.field = h("textarea", { rows: "3", id: `note-${this.number}`, onkeydown: (event) => this.onNoteKey(event) });
    this.saveButton = h("button", { type: "submit", class: "primary" }, "Save note");
    this.choose = h("p", { class: "hint" }, "A note goes with a rating: choose a thumb to save both.");
    this.editor = h("form", { class: "editor", hidden: true, onsubmit: (event) => { event.preventDefault(); this.saveNote(); } },
      h("label", { for: `note-${this.number}` }, `Note on ${about}`), this.field, this.choose,
      h("div", { class: "actions" }, this.saveButton, h("button", { type: "button", onclick: () => this.closeNote() }, "Cancel")));
  }

  /** What the gateway says stands there, as of a revision of the Session. */
  load(item, revision) {
    if (revision < this.revision) return;
    this.revision = Math.max(this.revision, revision || 0);
    this.isLoaded = true;
    this.item = item;
    this.conflict?.update(item);
    this.show();
  }

  /** An event: what stands there since. Whether that is news; what this page did is none. */
  hear(item, actor, revision) {
    if (item && actor) this.actors.set(item.version, actor);
    if (this.sending) { this.late = [item, actor, revision]; return false; }
    if (revision <= this.revision) { this.show(); return false; }
    this.load(item, revision);
    this.flash(`${actor ?? "somebody"} ${item ? "rated this just now" : "took this rating back"}`);
    return true;
  }

  show() {
    const rated = this.item?.rating;
    for (const [rating, thumb] of Object.entries(this.thumbs)) thumb.setAttribute("aria-pressed", String(rating === rated));
    const note = this.item?.note;
    this.note.hidden = note === undefined || !this.editor.hidden || this.conflict !== null;
    this.note.textContent = note ?? "";
    this.noteButton.textContent = note === undefined ? "Add note" : "Edit note";
    this.noteButton.setAttribute("aria-label", `${note === undefined ? "Add a note to" : "Edit the note on"} answer ${this.number}`);
    this.noteButton.setAttribute("aria-expanded", String(!this.editor.hidden));
    this.removeButton.hidden = !this.item;
    this.choose.hidden = Boolean(this.base);
    this.saveButton.hidden = !this.base;
    const actor = this.item && this.actors.get(this.item.version);
    this.state.textContent = this.item ? `${actor ? `${actor}, ` : ""}${moment(this.item.updatedAt)}` : "";
    this.onChange();
  }

  flash(message) {
    this.state.textContent = message;
    this.element.classList.remove("news");
    void this.element.offsetWidth; // so that the animation begins anew
    this.element.classList.add("news");
  }

  rate(rating) {
    const isWriting = !this.editor.hidden;
    const note = isWriting ? this.draft() : this.item?.note;
    return this.change({ rating, note }, isWriting ? this.base : this.item);
  }

  saveNote() {
    if (!this.base) { say("Choose positive or negative first: a note goes with a rating."); this.thumbs.positive.focus(); return; }
    this.change({ rating: this.base.rating, note: this.draft() }, this.base);
  }

  remove() { return this.change(null, this.item); }

  draft() { return this.field.value === "" ? undefined : this.field.value; }

  openNote() {
    if (this.editor.hidden) {
      // What is saved is meant for what its author saw, whatever happens meanwhile.
      this.base = this.item;
      this.field.value = this.kept ?? this.item?.note ?? "";
      this.editor.hidden = false;
      this.show();
    }
    this.field.focus();
  }

  closeNote({ keeps = true } = {}) {
    this.kept = keeps && this.field.value !== (this.item?.note ?? "") ? this.field.value : undefined;
    const hadFocus = this.editor.contains(document.activeElement);
    this.editor.hidden = true;
    this.show();
    if (hadFocus) this.element.closest(".answer").focus({ preventScroll: true });
  }

  onNoteKey(event) {
    if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); this.closeNote(); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.saveNote(); }
  }

  /** Asks for `wanted` (null: no rating) in place of `base`, the item that its author saw. */
  async change(wanted, base, key = commandId()) {
    if (this.sending) { say("The change before is still being saved."); return; }
    if (!this.isLoaded) { say("The ratings are still being loaded."); return; }
    this.sending = true;
    this.element.classList.add("sending");
    this.clearTrouble();
    try {
      const [item, revision] = await this.send(wanted, base, key);
      this.settled(item, revision);
    } catch (failure) {
      if (failure.code === "version-conflict") this.conflicted(wanted, failure.problem.current ?? null, failure.revision);
      else this.failed(failure, () => this.change(wanted, base, failure.problem?.commandId ?? key));
    } finally {
      this.sending = false;
      this.element.classList.remove("sending");
      const late = this.late;
      this.late = null;
      if (late) this.hear(...late);
    }
  }

  async send(wanted, base, key) {
    const headers = { "Idempotency-Key": key, ...(base ? { "If-Match": `"${base.version}"` } : { "If-None-Match": "*" }) };
    const path = `${this.place}/feedback/${segment(this.messageId)}`;
    if (wanted === null) {
      return [null, revisionOf(await request(path, { method: "DELETE", headers }))];
    }
    const response = await request(path, { method: "PUT", headers, body: wanted });
    return [await response.json(), revisionOf(response)];
  }

  settled(item, revision) {
    this.conflict = null;
    this.panel.replaceChildren();
    const hadFocus = this.element.contains(document.activeElement);
    this.kept = undefined;
    this.editor.hidden = true;
    this.load(item, revision);
    if (hadFocus && !(document.activeElement?.offsetParent)) this.element.closest(".answer").focus({ preventScroll: true });
    say(item ? `Answer ${this.number} rated ${item.rating}${item.note === undefined ? "" : ", with a note"}.` : `Rating of answer ${this.number} removed.`);
  }

  conflicted(mine, theirs, revision) {
    if (same(mine, theirs)) { this.settled(theirs, revision); return; }
    this.editor.hidden = true;
    this.conflict = conflictPanel({
      number: this.number, mine, theirs, actorOf: (item) => this.actors.get(item.version),
      keep: () => this.settled(this.item, this.revision), use: () => this.change(mine, this.item),
    });
    this.load(theirs, revision);
    this.conflict.update(this.item); // which may be newer: nobody chooses against what they did not see
    this.panel.replaceChildren(this.conflict.element);
    this.conflict.element.querySelector("h3").focus({ preventScroll: true });
    this.conflict.element.scrollIntoView({ block: "nearest" });
    say(`Somebody rated answer ${this.number} at the same time. Choose which rating stands.`);
  }

  failed(failure, again) {
    const isRetryable = !(failure instanceof Failure) || failure.isRetryable;
    const message = `Not saved. ${words(failure)}`;
    this.trouble.replaceChildren(h("p", {}, message),
      h("div", { class: "actions" }, isRetryable ? h("button", { type: "button", onclick: again }, "Try again") : null,
        h("button", { type: "button", onclick: () => this.clearTrouble() }, "Dismiss")));
    this.trouble.hidden = false;
    say(message);
  }

  clearTrouble() {
    if (this.trouble.contains(document.activeElement)) this.element.closest(".answer").focus({ preventScroll: true });
    this.trouble.hidden = true;
    this.trouble.replaceChildren();
  }
}
