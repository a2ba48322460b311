// Pictures of counts, drawn to be honest: axes begin at zero, counts stand beside shares, small samples say so.

import { h, svg } from "./dom.js";

const FEW = 10;
const SHOWN = 12;
const DAY_MS = 86400000;
const MOST_BARS = 60;

/** The 95 % interval of a share (Wilson): from, to. */
export function wilson(positive, all) {
  const z = 1.96, share = positive / all, base = 1 + (z * z) / all;
  const middle = (share + (z * z) / (2 * all)) / base;
  const half = (z * Math.sqrt((share * (1 - share)) / all + (z * z) / (4 * all * all))) / base;
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

/** Bars by day, or by longer spans when there are many days: positive above the line, negative below, one scale. */
export function overTime(days) {
  const { bars, span } = binned(days);
  const most = Math.max(...bars.map((bar) => Math.max(bar.positive, bar.negative)), 1);
  const step = niceStep(most), top = Math.ceil(most / step) * step;
  const width = Math.min(700, Math.max(300, document.documentElement.clientWidth - 32)), height = 220, left = 36, bottom = 22, plot = height - bottom;
  const y = (value) => plot / 2 - (value / top) * (plot / 2 - 8);
  const slot = (width - left) / bars.length, thick = Math.min(slot * 0.72, 28);
  const shapes = [];
  for (let value = -top; value <= top; value += step) {
    shapes.push(svg("line", { class: value === 0 ? "axis" : "grid", x1: left, x2: width, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Math.abs(value))));
  }
  bars.forEach((bar, at) => {
    const x = left + slot * at + (slot - thick) / 2;
    const column = svg("g", {}, svg("title", {}, `${bar.name}: ${bar.positive} positive, ${bar.negative} negative`));
    if (bar.positive) column.append(svg("rect", { class: "up", x, width: thick, y: y(bar.positive), height: y(0) - y(bar.positive) }));
    if (bar.negative) column.append(svg("rect", { class: "down", x, width: thick, y: y(0), height: y(-bar.negative) - y(0) }));
    shapes.push(column);
  });
  for (const at of new Set([0, Math.floor((bars.length - 1) / 2), bars.length - 1])) {
    const anchor = bars.length === 1 ? "middle" : at === 0 ? "start" : at === bars.length - 1 ? "end" : "middle";
    const x = anchor === "start" ? left : anchor === "end" ? width : left + slot * (at + 0.5);
    shapes.push(svg("text", { x, y: height - 4, "text-anchor": anchor }, bars[at].name));
  }
  const positive = bars.reduce((sum, bar) => sum + bar.positive, 0), negative = bars.reduce((sum, bar) => sum + bar.negative, 0);
  return h("figure", {},
    h("p", { class: "legend" }, h("span", { class: "up" }, "positive, above"), h("span", { class: "down" }, "negative, below"),
      span > 1 ? h("span", {}, `each bar is ${span} days`) : null),
    svg("svg", { class: "overtime", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label":
      `Ratings from ${bars[0].name} to ${bars.at(-1).name}: ${positive} positive, ${negative} negative. The numbers are in the table below.` }, shapes),
    h("details", { id: "time-table" }, h("summary", {}, "The numbers"),
      table(["From", "Positive", "Negative"], bars.filter((bar) => bar.positive + bar.negative).map((bar) => [bar.name, bar.positive, bar.negative]))));
}

/** Every day between the first and the last, also those without a rating; joined so that there are not too many. */
function binned(days) {
  const day = (text) => Date.parse(`${text}T00:00:00Z`) / DAY_MS;
  const first = day(days[0].day), last = day(days.at(-1).day);
  const span = Math.ceil((last - first + 1) / MOST_BARS);
  const bars = Array.from({ length: Math.ceil((last - first + 1) / span) }, (_, at) =>
    ({ name: new Date((first + at * span) * DAY_MS).toISOString().slice(0, 10), positive: 0, negative: 0 }));
  for (const one of days) {
    const bar = bars[Math.floor((day(one.day) - first) / span)];
    bar.positive += one.positive;
    bar.negative += one.negative;
  }
  return { bars, span };
}

function niceStep(most) {
  const rough = most / 2, power = 10 ** Math.floor(Math.log10(rough));
  return Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough));
}

/** A row each: counts, and the share of positive ones on an axis from 0 to 100 %, with how sure that is. */
export function shares(what, found, nameOf) {
  const row = ({ name = null, positive, negative }) => {
    const all = positive + negative, percent = Math.round((100 * positive) / all);
    return h("tr", {}, h("th", { scope: "row", title: name ?? "" }, nameOf(name)), h("td", { class: "number" }, String(positive)),
      h("td", { class: "number" }, String(negative)), h("td", { class: "share" }, picture(positive, all),
        h("span", {}, `${percent} %`), " ", all < FEW ? h("span", { class: "hint" }, "few ratings") : null));
  };
  const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, what), h("th", { scope: "col", class: "number" }, "Positive"),
    h("th", { scope: "col", class: "number" }, "Negative"), h("th", { scope: "col" }, "Share positive (0 to 100 %)")));
  const more = found.slice(SHOWN);
  return h("div", { class: "frame" }, h("table", { class: "shares" }, head, h("tbody", {}, found.slice(0, SHOWN).map(row))),
    more.length ? h("details", { id: `more-${what}` }, h("summary", {}, `${more.length} more`),
      h("table", { class: "shares" }, head.cloneNode(true), h("tbody", {}, more.map(row)))) : null);
}

function picture(positive, all) {
  const [from, to] = wilson(positive, all), width = 200, middle = 9, share = positive / all;
  const x = (value) => 5 + value * (width - 10);
  return svg("svg", { class: all < FEW ? "dot few" : "dot", viewBox: `0 0 ${width} 18`, "aria-hidden": "true" },
    svg("line", { class: "grid", x1: x(0), x2: x(1), y1: middle, y2: middle }),
    [0, 0.5, 1].map((value) => svg("line", { class: "grid", x1: x(value), x2: x(value), y1: 3, y2: 15 })),
    svg("line", { class: "range", x1: x(from), x2: x(to), y1: middle, y2: middle }),
    svg("circle", { cx: x(share), cy: middle, r: 4.5 }));
}

function table(columns, rows) {
  return h("table", {}, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(([first, ...others]) => h("tr", {}, h("th", { scope: "row" }, first), others.map((one) => h("td", { class: "number" }, String(one)))))));
}
