// The panels of a daemon's page, from one frame.
import { MODES, bytes, clock, duration, element, fill, number, table, terms } from "./draw.js";

const NAMES = { source: "Tarantool", quorum: "Quorum", daemon: "Daemon", registry: "Registry", kafka: "Kafka", store: "Store" };
const STATE_MODES = { streaming: "works", snapshot: "works", stalled: "stands", failed: "stands" };

/** Return how a daemon's state is coloured. */
export function modeOf(state) {
  return STATE_MODES[state] ?? "waits";
}

function drawWay(stations) {
  const shown = stations.filter((station) => station.mode !== "none" && station.name !== "store");
  const store = stations.find((station) => station.name === "store" && station.mode !== "none");
  const children = [];
  const box = (station) => {
    const [sign, word] = MODES[station.mode];
    return element("div", `station ${station.mode}`, element("b", "", NAMES[station.name]),
      element("span", "mode", `${sign} ${word}`), element("div", "text", station.text));
  };
  shown.forEach((station, at) => {
    if (at) {
      const isCut = [station, shown[at - 1]].some((each) => ["stands", "holds"].includes(each.mode));
      children.push(element("div", isCut ? "arrow cut" : "arrow", isCut ? "⇥" : "→"));
    }
    children.push(box(station));
  });
  if (store) children.push(element("div", "arrow", "+"), box(store));
  fill("way", ...children);
}

function quoted(quote) {
  return quote ? element("pre", "", quote) : element("p", "quiet", "The log has the row; with the role rows it is shown here.");
}

function drawTroubles(frame, quote) {
  const cards = frame.troubles.map((trouble) => {
    const since = trouble.since ? `${NAMES[trouble.place]}, for ${duration(Math.max(0, frame.now - trouble.since))}` : NAMES[trouble.place];
    const head = `${since}${trouble.is_holding_up ? "" : trouble.loses_rows ? "; rows go on, and consumers lack rows" : "; rows go on"}`;
    // That a quorum is waited for is a state of the replica set, and no error.
    const isMinor = (!trouble.is_holding_up && !trouble.loses_rows && !trouble.is_urgent) || trouble.place === "quorum";
    return element("div", isMinor ? "trouble minor" : "trouble", element("p", "quiet", head),
      element("p", "", element("b", "", trouble.sentence)), trouble.remedy ? element("p", "do", trouble.remedy) : null,
      trouble.has_detail ? quoted(quote) : null);
  });
  const { state, standby } = frame.status;
  const idle = standby?.is_ready ? "Nothing is wrong: this daemon stands by, and takes over when the other one ends." : standby ? "This daemon stands by, and isn't ready to take over yet." : `Nothing is wrong. The daemon is: ${state}.`;
  const calm = state === "streaming" ? "Nothing is wrong: changes flow and become durable." : idle;
  fill("troubles", ...(cards.length ? cards : [element("div", standby && !standby.is_ready ? "fine waits" : "fine works", calm)]));
}

function drawNumbers(frame) {
  const { status, newest } = frame;
  const pairs = [
    ["Lag", duration(frame.lag_seconds)], ["Lag in rows", number(frame.lag_rows)],
    ["Rows per second", number(newest.rows_per_second)], ["Events per second", number(newest.events_per_second)],
    ["To Kafka per second", bytes(newest.bytes_per_second)],
    ["Commit, median", status.kafka.commit_ms_median === null ? "–" : `${number(status.kafka.commit_ms_median)} ms`],
    ["Seq", number(status.position.seq)],
  ];
  fill("numbers", ...pairs.map(([name, value]) => element("div", "number", element("b", "", value), element("span", "quiet", name))));
}

function drawPositions(frame) {
  const { status, master } = frame;
  const { received, published, checkpoint } = status.position;
  const store = status.store?.position;
  const ignored = new Set(frame.setup.ignored_origins.map(String));
  const origins = Object.keys({ ...master, ...received, ...checkpoint }).sort((a, b) => a - b);
  const columns = ["Origin", "#Replica set", "#Received", "#Handed to Kafka", "#In Kafka", ...(store ? ["#Store"] : []), "#Behind"];
  const lsn = (vclock, origin) => number(vclock[origin] ?? 0);
  const rows = origins.map((origin) => [
    ignored.has(origin) ? `${origin} (left out)` : origin, lsn(master, origin), lsn(received, origin), lsn(published, origin),
    lsn(checkpoint, origin), ...(store ? [lsn(store, origin)] : []),
    ignored.has(origin) ? "–" : number(Math.max(0, (master[origin] ?? 0) - (checkpoint[origin] ?? 0)))]);
  fill("positions", rows.length ? table(columns, rows) : element("span", "quiet", "No position is known yet."),
    element("p", "quiet", "Consumers of committed messages see what is in Kafka. The replica set's position is that of the last survey, if no rows come."));
}

function headroom(member) {
  if (member.headroom_rows === null) return member.gc_vclock && !Object.keys(member.gc_vclock).length ? "all logs" : "–";
  const isGap = member.headroom_rows < 0;
  return isGap ? element("span", "stands", `gap: ${number(-member.headroom_rows)} rows`) : number(member.headroom_rows);
}

function ago(seconds) {
  return seconds === null ? "–" : `${duration(seconds)} ago`;
}

function drawMembers(frame) {
  const members = frame.status.upstreams;
  const mode = { following: "works", standby: "", behind: "waits", loading: "waits" };
  const rows = members.map((member) => [
    member.address, element("span", mode[member.state] ?? "stands", member.state),
    member.read_only === null ? "–" : member.read_only ? "read-only" : "writable", member.version,
    number(member.lag_rows), headroom(member),
    member.state === "following" ? ago(member.idle_seconds) : ago(member.age_seconds)]);
  const shown = rows.length ? table(["Address", "State", "Mode", "Version", "#Behind", "#Until a gap", "#Heard"], rows)
    : element("span", "quiet", frame.status.upstream.address ?? "No member has been asked yet.");
  fill("members", shown, element("p", "quiet", "“Until a gap” is how many rows before the daemon's position a member still has in its logs."));
}

function drawWaits(frame) {
  const { limbo, registry, buffers, store } = frame.status;
  const isFilling = buffers.is_reading ? "yes" : "no: Kafka has no room for more";
  const quorum = limbo.transactions
    ? `${number(limbo.transactions)} transactions (${number(limbo.rows)} rows) for ${duration(frame.limbo_seconds)}; the oldest is ${limbo.oldest}. `
      + "They are published once the replica set confirms them."
    : "no transaction";
  terms("waits", [
    ["For a quorum", quorum],
    ["Held for it", limbo.transactions ? `${bytes(limbo.bytes)} in memory, ${bytes(limbo.bytes_on_disk)} on disk` : null],
    ["For the registry", registry ? `${registry.subject}: ${registry.message}` : frame.setup.has_registry ? "no row" : null],
    ["For Kafka", `${bytes(buffers.queued_bytes)}`],
    ["For the store", store ? bytes(buffers.unwritten_bytes) : null],
    ["Open transaction", buffers.open_transaction_bytes ? bytes(buffers.open_transaction_bytes) : null],
    ["Reads from the master", isFilling],
  ]);
}

function drawSnapshot(frame) {
  const { snapshot, snapshot_request: request, last_snapshot_request: ended } = frame.status;
  const pairs = [];
  if (!snapshot) pairs.push(["Snapshot", "none since this process began"]);
  else if (snapshot.is_complete) {
    pairs.push(["Snapshot", `complete: ${number(snapshot.rows)} rows, ${number(snapshot.published_rows)} of them published, in ${duration(snapshot.seconds)}`]);
  } else {
    const expected = snapshot.expected_rows ? ` of about ${number(snapshot.expected_rows)}` : "";
    pairs.push(["Snapshot", `${number(snapshot.rows)} rows${expected}, ${number(snapshot.rows_per_second)} rows/s`],
      ["Space", snapshot.space ? `${snapshot.space}; ${snapshot.spaces_read} of ${snapshot.spaces} spaces done` : null],
      ["Left", snapshot.seconds_left === null ? "not known" : `about ${duration(snapshot.seconds_left)}`]);
    if (snapshot.share !== null) {
      const bar = element("progress", "");
      bar.max = 1;
      bar.value = snapshot.share;
      bar.setAttribute("aria-label", "share of the snapshot");
      pairs.push(["Share", bar]);
    }
    if (snapshot.seconds_since_rows > 5) pairs.push(["No row for", duration(snapshot.seconds_since_rows)]);
  }
  pairs.push(["Request", request ? `${request.spaces.join(", ") || "none yet"}: ${number(request.rows)} rows${request.paused ? ", pausing" : ""}` : "none"]);
  if (ended) pairs.push(["Last request", `${ended.spaces.join(", ")}: ${number(ended.rows)} rows${ended.error ? `; it ended: ${ended.error}` : ""}`]);
  if (request?.waiting) pairs.push(["Requests waiting", number(request.waiting)]);
  terms("snapshot", pairs);
}

function drawDaemon(frame) {
  const { status, setup } = frame;
  const { store, kafka, upstream } = status;
  terms("daemon", [
    ["Follows", ["streaming", "stalled", "snapshot", "standby"].includes(status.state) && upstream.address ? `${upstream.address} (Tarantool ${upstream.version}), as ${setup.mode}` : "nobody"],
    ["Standby of", status.standby?.of],
    ["Replica set", upstream.replicaset_uuid],
    ["Kafka", `${setup.kafka}, topics ${setup.topic_prefix}.*, ${setup.delivery.replaceAll("_", " ")}`],
    ["Commits", `${number(kafka.commits)}, ${number(kafka.aborts)} aborted; ${number(kafka.events)} events, ${bytes(kafka.bytes)}`],
    ["Store", store ? `${number(store.rows)} rows, ${bytes(store.bytes)} at ${setup.state_path}` : `none (state.images = "${setup.images}")`],
    ["Doubtful keys", store?.doubtful_keys ? number(store.doubtful_keys) : null],
    ["Room on disk", frame.disk_free_bytes === null ? null : bytes(frame.disk_free_bytes)],
    ["Rows", `${number(status.rows)} received, ${number(status.rows_by_path.python)} of them by the Python path`],
    ["Row path", status.row_path],
    ["Reconnects", number(upstream.reconnects)],
    ["Lost log lines", status.log_lines_lost ? number(status.log_lines_lost) : null],
    ["Process", `${status.process_id}, running for ${duration(status.uptime_seconds)}`],
  ]);
}

function drawPast(frame) {
  const lines = frame.past.map((trouble) => [
    element("span", "nowrap", clock(trouble.since)), element("span", "nowrap", duration(trouble.until - trouble.since)), element("span", "", `${NAMES[trouble.place]}: ${trouble.sentence}`)]);
  fill("past", lines.length ? table(["From", "For", "What"], lines) : element("span", "quiet", "Nothing since this process began."));
}

/** Show one frame; `quote` is what the daemon's error quotes of rows, if this page may know it. */
export function draw(frame, quote) {
  const { status } = frame;
  document.title = `${status.state === "streaming" || status.standby?.is_ready ? "" : "! "}${status.name} · ${status.state}`;
  fill("name", status.name);
  fill("state", status.state);
  document.getElementById("state").className = `badge ${modeOf(status.state)}`;
  fill("about", `up for ${duration(status.uptime_seconds)}`);
  drawWay(frame.way);
  drawTroubles(frame, quote);
  drawNumbers(frame);
  drawPositions(frame);
  drawMembers(frame);
  drawWaits(frame);
  drawSnapshot(frame);
  drawDaemon(frame);
  drawPast(frame);
}
