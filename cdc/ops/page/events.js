// The newest events of a chosen topic, and orders to the daemon: for who has a token with the roles.
import { bytes, element, fill, table } from "./draw.js";
import { Refusal, get, order } from "./link.js";

const TURN_MS = 1000;
const KEPT = 25;
let topic = "";
let last = 0;
let events = [];
let skipped = 0;
let timer = 0;

/** Return an event's operation, seq and row; of a value that isn't JSON, or was cut, the text. */
function parts(text) {
  if (text === null) return ["", "", "tombstone"];
  try {
    const value = JSON.parse(text);
    if (!value.source) return [value.__op ?? "", value.__source_seq ?? "", text];
    return [value.op, value.source.seq ?? "", JSON.stringify(value.after ?? value.before ?? value.patch ?? null)];
  } catch { return ["", "", text]; }
}

function row(event) {
  const [op, seq, shown] = parts(event.value);
  const text = event.value ?? "";
  const details = element("details", "", element("summary", "", shown));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("pre")) return;
    let pretty = text;
    try { pretty = JSON.stringify(JSON.parse(text), null, 1); } catch { /* cut, or not JSON: as it is */ }
    details.append(element("pre", "", pretty), element("span", "quiet", bytes(event.bytes)));
  }, true);
  return [op, seq, event.key ?? "–", details];
}

function show() {
  const body = document.getElementById("newest");
  if (!body) return;
  // An opened event must not be closed under the reader's eyes.
  if (body.querySelector("details[open]")) return;
  const note = skipped ? element("p", "quiet", `${skipped} messages went by without being looked at: there are too many.`) : "";
  const lines = events.length ? table(["Op", "#Seq", "Key", "Value"], events.toReversed().map(row))
    : element("p", "quiet", "No event since this topic is watched.");
  body.replaceChildren(lines, note);
}

async function turn() {
  if (!topic || document.hidden) return;
  try {
    const found = await get(`page/events?topic=${encodeURIComponent(topic)}&after=${last}`);
    if (found.events.length) {
      last = found.events.at(-1).number;
      events = [...events, ...found.events].slice(-KEPT);
    } else if (last && found.newest < last) {
      last = 0; // the daemon forgot the topic meanwhile, and counts anew
    }
    skipped = found.skipped;
    show();
  } catch (error) {
    if (error instanceof Refusal) { clearInterval(timer); draw([]); }
  }
}

/** Show the panels that the token's roles permit. */
export async function draw(roles) {
  clearInterval(timer);
  topic = "";
  drawOrders(roles.includes("operate"));
  if (!roles.includes("rows")) {
    fill("events", element("p", "quiet", "Events contain rows: that needs a token with the role rows."));
    return;
  }
  const { topics } = await get("page/topics");
  const choice = element("select", "");
  choice.setAttribute("aria-label", "topic");
  choice.append(element("option", "", "choose a topic"), ...topics.map((name) => element("option", "", name)));
  choice.addEventListener("change", () => {
    topic = choice.selectedIndex ? choice.value : "";
    last = 0;
    events = [];
    show();
    turn();
  });
  const newest = element("div", "");
  newest.id = "newest";
  fill("events", element("div", "row", choice, element("span", "quiet", "As they are handed to Kafka, masked as configured.")), newest);
  timer = setInterval(turn, TURN_MS);
}

function drawOrders(isShown) {
  const place = document.getElementById("orders");
  place.hidden = !isShown;
  if (!isShown) return;
  const space = element("input", "");
  space.placeholder = "space";
  space.setAttribute("aria-label", "space");
  const says = element("span", "quiet", "");
  const button = (name, path, body) => {
    const made = element("button", "", name);
    made.type = "button";
    made.addEventListener("click", async () => {
      try {
        const answer = await order(path, body());
        says.textContent = `taken: ${answer.id}`;
      } catch (error) { says.textContent = error.message; }
    });
    return made;
  };
  const chosen = () => ({ spaces: [space.value.trim()] });
  place.replaceChildren(element("div", "row", space, button("Publish all rows again", "snapshot", chosen),
    button("Pause", "snapshot/pause", () => ({})), button("Resume", "snapshot/resume", () => ({})),
    button("Stop all", "snapshot/stop", () => ({})), says));
}
