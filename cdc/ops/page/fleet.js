// The page of a fleet: a line for each shard, and what is wrong with which. Each shard has a page of its own.
import { bytes, duration, element, fill, number, table } from "./draw.js";
import { begin } from "./frame.js";
import { get } from "./link.js";
import { modeOf } from "./panels.js";

const TURN_SECONDS = 3;

function link(shard) {
  const made = element("a", "", shard);
  made.href = `shards/${encodeURIComponent(shard)}/`;
  return made;
}

function row(shard, { process, restarts, status }) {
  const state = status?.state ?? (process === "running" ? "no answer" : process);
  return [
    link(shard), element("span", modeOf(status ? state : "failed"), state), status?.upstream.address,
    duration(status?.lag_seconds), number(status?.position.seq), number(status?.rows), bytes(status?.buffers.queued_bytes),
    number(status?.limbo.transactions), number(restarts)];
}

function remedy(shard, { process, silence, status }) {
  if (status?.error) return ["Its page says it: ", link(shard)];
  if (status) return ["It runs again. The log of the fleet's process says more."];
  if (process !== "running") return ["The log of the fleet's process says why. It is started again by itself."];
  return [silence?.remedy ?? "Wait for some seconds: it has just been started, or is busy."];
}

function drawTroubles(shards) {
  const cards = Object.entries(shards).filter(([, { status, error }]) => !status || status.error || error).map(([shard, state]) => {
    const { process, error, silence, status } = state;
    const why = silence?.sentence ?? error;
    const sentence = status ? status.error ?? `its process ended before: ${error}` : `its daemon doesn't answer (${process})${why ? `: ${why}` : ""}`;
    const isMinor = status && !status.error;
    return element("div", isMinor ? "trouble minor" : "trouble", element("p", "quiet", link(shard)),
      element("p", "", element("b", "", sentence)), element("p", "do", ...remedy(shard, state)));
  });
  fill("troubles", ...(cards.length ? cards : [element("div", "fine works", "Nothing is wrong: changes of all shards flow and become durable.")]));
}

/** Show a fleet's status. */
export function draw(fleet) {
  const shards = Object.entries(fleet.shards);
  const isWell = shards.every(([, { status }]) => (status?.state === "streaming" || status?.standby?.is_ready) && !status.error);
  document.title = `${isWell ? "" : "! "}${fleet.name} · ${shards.length} shards`;
  fill("name", fleet.name);
  fill("state", isWell ? "all shards stream" : "not all is well");
  document.getElementById("state").className = `badge ${isWell ? "works" : "waits"}`;
  fill("about", `${shards.length} shards, ${fleet.topics.replaceAll("_", " ")} topics`);
  drawTroubles(fleet.shards);
  const columns = ["Shard", "State", "Follows", "#Lag", "#Seq", "#Rows", "#For Kafka", "#For a quorum", "#Restarts"];
  fill("shards", table(columns, shards.map(([shard, state]) => row(shard, state))));
}

async function follow(show, fail) {
  for (;;) {
    if (!document.hidden) {
      try { show(await get("status")); } catch (error) { fail(error); }
    }
    await new Promise((resolve) => setTimeout(resolve, TURN_SECONDS * 1000 * (0.7 + 0.6 * Math.random())));
  }
}

begin(draw, () => {}, follow);
