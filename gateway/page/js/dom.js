// Building the page. Nothing here takes HTML: text becomes text nodes, whatever is in it.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An element: attributes by name ("onclick" and the like are listeners), then children; null ones are left out. */
export const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

/** The same for SVG. */
export const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

const ICONS = {
  up: "M7 21V10l4.2-7.2a1.6 1.6 0 0 1 2.9 1.2L13 9h5.6a2 2 0 0 1 2 2.4l-1.5 7.6a2.5 2.5 0 0 1-2.4 2zM3 10h4v11H3z",
  down: "M17 3v11l-4.2 7.2a1.6 1.6 0 0 1-2.9-1.2L11 15H5.4a2 2 0 0 1-2-2.4l1.5-7.6a2.5 2.5 0 0 1 2.4-2zM21 14h-4V3h4z",
  note: "M4 4h16v12H11l-5 4v-4H4zM8 8.5h8M8 11.5h5",
};

/** A drawing that says nothing to screen readers: whatever bears it has a name. */
export const icon = (name) =>
  svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

export const byId = (id) => document.getElementById(id);

/** Says something to screen readers, without moving anybody's focus. */
export function say(words) {
  const region = byId("said");
  region.textContent = "";
  requestAnimationFrame(() => { region.textContent = words; });
}

export const main = () => byId("main");

/** Where the list was left: its address, and which Session was opened from it. */
export const left = { list: "#/", opened: null };

/** Replaces what the page shows. */
export function show(title, ...children) {
  document.title = title ? `${title} · Session feedback` : "Session feedback";
  main().replaceChildren(...children);
}

const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });

const written = (format, at) => {
  // A log may hold any number; what is no date is shown as none.
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? "" : format.format(date);
};

export const clock = (at) => written(CLOCK, at);
export const moment = (at) => written(MOMENT, at);

/** A time that says more the nearer it is. */
export function when(at) {
  if (at === undefined || at === null || Number.isNaN(new Date(at).getTime())) return null;
  const isToday = new Date(at).toDateString() === new Date().toDateString();
  return h("time", { datetime: new Date(at).toISOString(), title: moment(at) }, isToday ? clock(at) : written(DAY, at));
}

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString()} ${number === 1 ? one : many}`;

/** The last part of a directory, which is what people call the project. */
export const projectName = (cwd) => (cwd ? cwd.split(/[\\/]/).filter(Boolean).pop() ?? cwd : "No project");

/** Measures from the mark `since` to when what was drawn just now is on the screen (User Timing). */
export const measure = (name, since) => requestAnimationFrame(() => setTimeout(() => performance.measure(name, since)));

/** Calls `action` `ms` after the first of what comes; what comes meanwhile is in it. */
export function gathered(action, ms) {
  let timer = null;
  const later = () => { timer ??= setTimeout(() => { timer = null; action(); }, ms); };
  later.cancel = () => { clearTimeout(timer); timer = null; };
  return later;
}

/** Calls `action` once, when nothing came for `ms`. */
export function debounced(action, ms) {
  let timer;
  const later = (...given) => { clearTimeout(timer); timer = setTimeout(() => action(...given), ms); };
  later.cancel = () => clearTimeout(timer);
  return later;
}
