"""`tarantool-cdc status`: prints the running daemon's status, for people or as the daemon returns it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from cdc.commands import silence
from cdc.config import Config
from cdc.config.fleet import Fleet
from cdc.daemon.http_settings import access_of
from cdc.errors import RequestError
from cdc.ops.asking import ask, tap_status
from cdc.ops.silence import silence_in
from cdc.positions.vclock import VClock
from cdc.stream.commits.losses import LostTopic

_QUIET_SECONDS: Final = 5.0
"""Time without a snapshot's rows, in seconds, from which on it is shown."""


def status(config: Config, say: Callable[[str], object], *, as_json: bool) -> None:
    """Ask the daemon, and print its status. Raises ConfigurationError, or RequestError with the daemon's answer."""
    with silence.explained(config):
        found = ask(config.name, config.http.address, "/status", access=access_of(config))
    tap = tap_status(config.name, config.tap.http_address)
    if as_json:
        say(json.dumps({**found, "tap": tap} if tap is not None else found, indent=1))
    else:
        say("\n".join([readable(found), *(readable_tap(tap) if tap is not None else [])]))


def fleet_status(fleet: Fleet, say: Callable[[str], object], *, as_json: bool) -> None:
    """Ask a fleet's process, and print the status of all its daemons. Raises as `status`."""
    found = ask(fleet.name, fleet.shared.http.address, "/status", access=access_of(fleet.shared))
    if "shards" not in found:
        raise RequestError(
            f"a daemon {fleet.name!r} answers at http.listen, not the process of a fleet",
            "Stop it, or give the fleet another name.",
        )
    say(json.dumps(found, indent=1) if as_json else readable_fleet(found))


def readable_fleet(found: dict[str, Any]) -> str:
    """Return a fleet's /status as text for people: a paragraph for each shard."""
    parts = [f"{'fleet':<12} {found['name']}, {found['topics'].replace('_', ' ')} topics, {len(found['shards'])} shards"]
    for shard, state in found["shards"].items():
        process = state["process"] + (f" (process {state['process_id']})" if state["process_id"] is not None else "")
        if state["restarts"]:
            process += f", started again {state['restarts']} time{'s' if state['restarts'] > 1 else ''}"
        if state["error"] and state["process"] != "running":
            process += f": {state['error']}"
        lines = [f"{'shard':<12} {shard}", f"{'process':<12} {process}"]
        silent = silence_in(state.get("silence"))
        if silent is not None:
            lines += [f"{'silent':<12} {silent.sentence}", f"{'change':<12} {silent.remedy}"]
        elif state["status"] is None and state["process"] == "running":
            lines.append(f"{'silent':<12} it doesn't answer; it may have been started just now")
        if state["status"] is not None:
            lines.append(readable(state["status"]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _state(status: dict[str, Any]) -> str:
    standby = status.get("standby")
    if standby is None:
        return str(status["state"])
    other = f" of {standby['of']}" if standby.get("of") else ""
    return f"{status['state']}{other}, {'ready to take over' if standby['is_ready'] else 'not ready to take over'}"


def readable(status: dict[str, Any]) -> str:
    """Return /status as text for people."""
    upstream, position, kafka = status["upstream"], status["position"], status["kafka"]
    commits = f"{kafka['commits']} commits"
    if kafka["commit_ms_median"] is not None:
        commits += f", a commit took {kafka['commit_ms_median']} ms (median of the last), {kafka['commit_ms_max']} ms at most"
    address = f"{upstream['address']}, {upstream['version']}, uuid {upstream['uuid']}, idle {upstream['idle_seconds']} s"
    lines = [
        ("name", status["name"]),
        ("state", _state(status) + (f" ({status['error']})" if status["error"] else "")),
        ("upstream", address if upstream["address"] is not None else "none yet"),
        ("replica set", upstream["replicaset_uuid"] or "not known yet"),
        ("checkpoint", f"{_vclock(position['checkpoint'])} of received {_vclock(position['received'])}"),
        ("seq", position["seq"]),
        ("lag", f"{status['lag_seconds']} s"),
        (
            "rows",
            f"{status['rows']} received, those of system and excluded spaces too, "
            f"{status['rows_by_path']['python']} of them by the Python path",
        ),
        ("kafka", f"{kafka['events']} events, {commits}"),
        ("uptime", f"{status['uptime_seconds']} s"),
        ("row path", status["row_path"]),
    ]
    if status.get("snapshot") is not None:
        lines.insert(-3, ("snapshot", _snapshot_line(status["snapshot"])))
    store, request = status["store"], status["snapshot_request"]
    if store is not None:
        lines.insert(-2, ("store", f"{store['rows']} rows, {store['bytes']} bytes, at {_vclock(store['position'])}"))
    if request is not None:
        wanted = ", ".join(request["spaces"]) or "nothing yet"
        pause = ", pausing" if request["paused"] else ""
        progress = f"{request['rows']} rows so far{pause}, {request['waiting']} requests waiting"
        lines.insert(-2, ("snapshot of", f"{wanted}: {progress}"))
    elif (ended := status.get("last_snapshot_request")) is not None:
        how = "rows published again" if ended["error"] is None else f"rows, and then it ended: {ended['error']}"
        lines.insert(-2, ("snapshot of", f"{', '.join(ended['spaces'])}: {ended['rows']} {how}"))
    lines += bucket_lines(status.get("buckets"))
    # A process of an older version doesn't report them.
    lines += [("lost topic", LostTopic.from_json(loss).sentence) for loss in status.get("lost_topics", ())]
    lines += _lost_log_lines(status)
    lines += [("member", _member_line(member)) for member in status["upstreams"]]
    return "\n".join(f"{name:<12} {value}" for name, value in lines)


def _snapshot_line(snapshot: dict[str, Any]) -> str:
    """Return how far the last snapshot is."""
    parts = [f"{snapshot['rows']} rows"]
    if snapshot["expected_rows"] is not None and not snapshot["is_complete"]:
        parts[0] += f" of about {snapshot['expected_rows']}"
    parts.append(f"{snapshot['published_rows']} of them published")
    if snapshot["is_complete"]:
        return f"complete: {', '.join(parts)}, in {snapshot['seconds']} s"
    if snapshot["space"] is not None:
        parts.append(f"now in {snapshot['space']}, {snapshot['spaces_read']} of {snapshot['spaces']} spaces done")
    parts.append(f"{snapshot['rows_per_second']} rows/s, for {snapshot['seconds']} s")
    if snapshot["seconds_left"] is not None:
        parts.append(f"about {snapshot['seconds_left']} s left")
    if snapshot["seconds_since_rows"] > _QUIET_SECONDS:
        parts.append(f"no row for {snapshot['seconds_since_rows']} s")
    return ", ".join(parts)


def readable_tap(tap: dict[str, Any]) -> list[str]:
    """Return the TAP server's /status as text for people: a line for the server, and one for each client."""
    lines = [
        ("tap", f"{tap['connections']} connections, {tap['sessions']} sessions, at seq {tap['seq']}" + _problem(tap["error"]))
    ]
    lines += _lost_log_lines(tap)
    store = tap["store"]
    if store is not None:
        state = "being filled" if store["is_loading"] else f"at seq {store['seq']}, {store['lag']} behind"
        lacking = f"; rows may be missing of {', '.join(store['incomplete'])}" if store["incomplete"] else ""
        lines.append(("tap store", f"{store['rows']} rows, {store['bytes']} bytes, {state}{lacking}"))
    lines += [
        (
            "tap client",
            f"{client['name']} ({client['address']}), {client['state']}, at seq {client['seq']}, {client['lag']} behind, "
            f"{client['unacked']} messages ({client['unacked_bytes']} bytes) not acknowledged, {client['sent_bytes']} bytes sent",
        )
        for client in tap["clients"]
    ]
    memcached = tap["memcached"]
    if memcached is not None:
        lines.append(("memcached", f"{memcached['address']} at seq {memcached['seq']}" + _problem(memcached["error"])))
    return [f"{name:<12} {value}" for name, value in lines]


def bucket_lines(buckets: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return what waits of buckets that move, and what is wrong with buckets, if anything is."""
    if buckets is None:
        return []
    lines = [("buckets", buckets["message"])] if buckets["waiting"] else []
    if buckets["awaits"]:
        names = ", ".join(buckets["awaits"])
        lines.append(("beginning", f"not all daemons have seen each other begin, rows may be shown again; missing: {names}"))
    if buckets["arrived_unseen"]:
        told = f"{buckets['arrived_unseen']} buckets arrived while the daemon didn't follow: rows deleted then may be left over"
        lines.append(("left over", told))
    if buckets["lost_changes"]:
        named = "; ".join(f"bucket {one['bucket_id']}, space {one['space_id']}, key {one['key']}" for one in buckets["lost"])
        lines.append(
            ("past router", f"{buckets['lost_changes']} changes of copies that others own, not published; the last: {named}")
        )
    if buckets.get("strangers"):
        lines.append(("no shard", f"has the replica set's name that `_bucket` has: {', '.join(buckets['strangers'])}"))
    lines += [
        ("two owners", f"bucket {bucket_id} belongs to the shards {', '.join(names)}")
        for bucket_id, names in buckets["doubled"].items()
    ]
    return lines


def _lost_log_lines(status: dict[str, Any]) -> list[tuple[str, str]]:
    # A process of an older version doesn't report them.
    count = status.get("log_lines_lost", 0)
    return [("log", f"{count} lines could not be written: nobody reads its stderr, or that disk is full")] if count else []


def _problem(error: str | None) -> str:
    return f" ({error})" if error else ""


def _vclock(components: dict[str, int]) -> str:
    """Return a vclock in its usual form: {1: 56}."""
    return str(VClock.from_json(components))


def _member_line(member: dict[str, Any]) -> str:
    parts = [f"{member['address']} {member['state']}"]
    if member["vclock"] is not None:
        age = f" {member['age_seconds']:.0f} s ago" if member["age_seconds"] is not None else ""
        parts.append(f"{member['version']}, {'read-only' if member['read_only'] else 'writable'}, uuid {member['uuid']}")
        parts.append(
            f"{age.strip()} at {_vclock(member['vclock'])}, {member['lag_rows']} rows behind the most advanced member".strip()
        )
        if not member["gc_vclock"]:
            parts.append("all logs are kept")
        else:
            parts.append(f"logs from {_vclock(member['gc_vclock'])}")
            headroom = member["headroom_rows"]
            if headroom is not None:
                parts.append(
                    f"{headroom} rows before the daemon's position are kept" if headroom >= 0 else f"a gap of {-headroom} rows"
                )
    if member["error"]:
        parts.append(member["error"])
    return "; ".join(parts)
