// Plots of the last hour, as SVG.
import { bytes, clock, duration, element, fill, number } from "./draw.js";

const SPAN_SECONDS = 3600;
const SPAN_SECONDS_MIN = 300;
const WIDTH = 600;
const HEIGHT = 100;
const PLOTS = [
  ["rows_per_second", "Rows per second", number],
  ["bytes_per_second", "Bytes to Kafka per second", bytes],
  ["lag_seconds", "Lag", duration],
  ["lag_rows", "Lag in rows", number],
  ["commit_ms", "Time of a commit", (value) => `${number(value)} ms`],
  ["limbo_transactions", "Transactions that wait for a quorum", number],
];

const samples = { at: [] };

/** Take over the samples of the last hour. */
export function restore(history) {
  Object.assign(samples, history);
}

/** Add the newest sample, if it is one that isn't there yet. */
export function add(newest) {
  if (!newest.at || newest.at <= (samples.at.at(-1) ?? 0)) return false;
  for (const name of Object.keys(newest)) (samples[name] ??= []).push(newest[name]);
  while (samples.at[0] < newest.at - SPAN_SECONDS) for (const values of Object.values(samples)) values.shift();
  return true;
}

function drawn(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function plot([name, title, shown]) {
  const values = samples[name] ?? [];
  const times = samples.at;
  const end = times.at(-1) ?? 0;
  const top = Math.max(...values, 0) || 1;
  const span = Math.min(SPAN_SECONDS, Math.max(SPAN_SECONDS_MIN, end - (times[0] ?? end)));
  const x = (at) => (WIDTH * (at - (end - span))) / span;
  const y = (value) => HEIGHT - 4 - (value / top) * (HEIGHT - 10);
  let line = "";
  values.forEach((value, at) => {
    // A gap between samples is one in the line: the daemon didn't run then, or the machine slept.
    const isJoined = at > 0 && times[at] - times[at - 1] < 30;
    line += `${isJoined ? "L" : "M"}${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  svg.setAttribute("aria-label", `${title}: now ${shown(values.at(-1) ?? 0)}, at most ${shown(Math.max(...values, 0))}`);
  if (values.length > 1) {
    const area = `${line.replaceAll("M", "L").replace("L", "M")}L${x(end)} ${HEIGHT}L${x(times[0])} ${HEIGHT}Z`;
    svg.append(drawn("path", { d: area, class: "area" }), drawn("path", { d: line }));
  }
  const now = element("b", "", values.length ? shown(values.at(-1)) : "–");
  const head = element("div", "head", title, now);
  const most = element("span", "", values.length ? `at most ${shown(Math.max(...values))}` : "no sample yet");
  const foot = element("div", "foot", element("span", "", times.length ? clock(end - span) : ""), most, element("span", "", clock(end)));
  const mark = drawn("line", { y1: 0, y2: HEIGHT, visibility: "hidden" });
  svg.append(mark);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = end - span + ((event.clientX - box.left) / box.width) * span;
    let nearest = 0;
    times.forEach((time, index) => { if (Math.abs(time - at) < Math.abs(times[nearest] - at)) nearest = index; });
    if (!times.length) return;
    mark.setAttribute("x1", x(times[nearest]));
    mark.setAttribute("x2", x(times[nearest]));
    mark.setAttribute("visibility", "visible");
    now.textContent = `${clock(times[nearest])}: ${shown(values[nearest])}`;
  });
  svg.addEventListener("pointerleave", () => {
    mark.setAttribute("visibility", "hidden");
    now.textContent = values.length ? shown(values.at(-1)) : "–";
  });
  return element("div", "plot", head, svg, foot);
}

/** Draw all plots anew. */
export function draw() {
  fill("plots", ...PLOTS.map(plot));
}
