// All ratings, in a few pictures. Each has its numbers beside it.

import { count, gathered, h, projectName, show } from "./dom.js";
import { read, words } from "./api.js";
import { listen } from "./events.js";
import { overTime, shares } from "./charts.js";

const QUIET_MS = 1000;
const READING_MS = 700;

/** Shows the overview, and keeps it up to date. */
export async function showOverview({ signal }) {
  const body = h("div", { class: "wide overview" });
  const load = async () => {
    const found = await read("/overview", signal);
    if (signal.aborted) return;
    draw(body, found);
    if (found.unread) setTimeout(soon, READING_MS);
  };
  const soon = gathered(() => load().catch((failure) => {
    if (!signal.aborted) body.querySelector(".lead").textContent = `Not up to date. ${words(failure)}`;
  }), QUIET_MS);
  signal.addEventListener("abort", soon.cancel);
  listen("/events", signal, { onEvent: soon, onReload: soon });
  await load();
  if (!signal.aborted) show("Overview", body);
}

function draw(body, found) {
  const open = [...body.querySelectorAll("details[open]")].map((one) => one.id);
  const all = found.positive + found.negative;
  body.replaceChildren(h("h1", {}, "Overview"),
    h("p", { class: "lead" }, all
      ? `${count(all, "rating")} in ${count(found.ratedSessions, "Session")} of ${found.sessions.toLocaleString()}: `
        + `${found.positive.toLocaleString()} positive, ${found.negative.toLocaleString()} negative, ${found.notes.toLocaleString()} with a note.`
      : "Nothing is rated yet."),
    ...(all ? [
      section("Over time", "Ratings that stand, by the day of their last change (UTC).", overTime(found.days)),
      section("By model", modelsHint(found), shares("Model", found.models, (name) => name ?? "No model")),
      section("By project", "Where the Sessions ran.", shares("Project", found.projects, projectName)),
      h("p", { class: "hint" }, "Shares are of ratings, and people rate what strikes them: they say little about answers that nobody rated. "
        + "The bar is the share’s 95 % confidence interval (Wilson): how far so few ratings can be trusted."),
    ] : []));
  for (const id of open) body.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
}

function modelsHint(found) {
  const notes = ["Which model gave the rated answer, by the Session’s log."];
  if (found.unread) notes.push(`Not counted yet: ${count(found.unread, "Session")}, whose logs are still being read.`);
  if (found.unknownAnswers) notes.push(`${count(found.unknownAnswers, "rating")} of answers that no log holds any more are left out.`);
  return notes.join(" ");
}

const section = (title, hint, ...children) =>
  h("section", { "aria-label": title }, h("h2", {}, title), h("p", { class: "hint" }, hint), ...children);
