// Helpers that make elements and texts. Whatever comes from a server is set as text, never as HTML.

/** Return an element with a class (or ""), and its children: elements, or texts. */
export function element(tag, kind, ...children) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Replace an element's content. */
export function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children);
}

/** Fill a list of terms; pairs whose value is null are left out. */
export function terms(id, pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined);
  fill(id, ...shown.flatMap(([term, value]) => [element("dt", "", term), element("dd", "", value)]));
}

/** Return a table; columns whose name begins with "#" hold numbers. */
export function table(columns, rows) {
  const isNumber = columns.map((name) => name.startsWith("#"));
  const head = columns.map((name, at) => element("th", isNumber[at] ? "n" : "", name.replace("#", "")));
  const lines = rows.map((row) =>
    element("tr", "", ...row.map((value, at) => {
      const isElement = value instanceof Node;
      return element("td", isNumber[at] ? "n" : "", isElement ? value : String(value ?? "–"));
    })));
  return element("div", "scroll", element("table", "", element("thead", "", element("tr", "", ...head)), element("tbody", "", ...lines)));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Return a number with separators; small ones with a decimal. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 10 && value % 1 ? exact.format(value) : whole.format(value);
}

/** Return a number of bytes with a unit. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** Return a duration in seconds as people say it. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** Return the time of day of seconds since the epoch. */
export function clock(at) {
  return at ? new Date(at * 1000).toLocaleTimeString([], { hour12: false }) : "–";
}

export const MODES = {
  works: ["✓", "works"], idle: ["·", "idle"], waits: ["‖", "waits"], holds: ["‖", "holds everything up"], stands: ["✕", "stands still"], none: ["", "not used"],
};
