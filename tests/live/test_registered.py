"""A daemon that is a member of its replica set: logs are kept while it is away and no longer, and its id can be given back."""

from __future__ import annotations

import pytest

from cdc.upstream.identity import instance_uuid
from tests.live.forked import run_command
from tests.live.scene import Scene
from tests.live.test_gaps import forget_logs, news
from tests.live.test_operators import complaint
from tests.live.test_state import verified
from tests.live.waiting import wait_for

ROWS = 50
"""Of each space at the beginning."""

_CREATE = """
for _, name in ipairs{'many', 'idle'} do
    local space = box.schema.space.create(name, {format = {{'id', 'unsigned'}, {'n', 'integer'}, {'word', 'string'}}})
    space:create_index('primary')
    for id = 1, ... do space:replace{id, id, 'row ' .. id} end
end
"""

# Contents that take a while to send, and somebody who writes all the time.
_WRITE = """
local fiber, many = require('fiber'), box.space.many
box.begin()
for id = 1001, 6000 do many:insert{id, id, string.rep('x', 100)} end
box.commit()
writing = true
fiber.create(function()
    for id = 10001, 100000 do
        if not writing then break end
        many:insert{id, id, 'new'}
        many:update(1 + id % 50, {{'+', 2, 1}})
        many:delete(id - 9000)
        fiber.sleep(0.001)
    end
end)
"""

_CONSUMERS = """
local found = {}
for _, consumer in ipairs(box.info.gc().consumers) do
    if consumer.name:endswith(...) then table.insert(found, consumer.vclock[1]) end
end
return found
"""


@pytest.fixture(autouse=True)
def member(scene: Scene) -> None:
    """The daemon is registered, and a gap ends it."""
    scene.daemon.settings["kafka"]["partitions"] = 1
    scene.daemon.settings["source"] |= {"mode": "registered", "on_gap": "fail"}
    scene.tarantool.eval(_CREATE, ROWS)


def uuid_of(scene: Scene) -> str:
    """The daemon's, as an instance."""
    return str(instance_uuid(scene.daemon.name))


def id_of(scene: Scene) -> int | None:
    """The daemon's, in `_cluster`."""
    ids = scene.tarantool.eval("local row = box.space._cluster.index.uuid:get(...) return row and row[1]", uuid_of(scene))
    return ids[0] if ids else None


def kept_from(scene: Scene) -> list[int]:
    """For each log file that the master keeps: up to which lsn the files before it lead."""
    return sorted(int(path.stem) for path in scene.tarantool.work_dir.glob("*.xlog"))


def catch_up_and_stop(scene: Scene) -> None:
    """One run of the daemon."""
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0


def command(scene: Scene, *arguments: str) -> tuple[int, str]:
    """Run `unregister` with the daemon's configuration: exit status, and all that it said."""
    file = scene.daemon.directory / f"{scene.daemon.name}.toml"
    done = run_command("unregister", "--config", str(file), *arguments)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_logs_stay_while_the_daemon_is_away(scene: Scene) -> None:
    scene.tarantool.eval("box.cfg{checkpoint_count = 1}")
    catch_up_and_stop(scene)
    assert id_of(scene) == 2
    (acknowledged,) = scene.tarantool.eval(_CONSUMERS, uuid_of(scene))[0]
    for number in range(100, 104):
        scene.tarantool.eval(
            "box.space.many:insert{..., 0, 'away'} box.space.many:update(1, {{'+', 2, 1}}) box.snapshot()", number
        )

    def snapshots() -> list[int]:
        return [int(path.stem) for path in scene.tarantool.work_dir.glob("*.snap")]

    wait_for("the master removes what it may", lambda: len(snapshots()) == 1)
    (snapshot,) = snapshots()
    # A log's name is the position at which it begins.
    assert kept_from(scene)[0] <= acknowledged < snapshot
    scene.daemon.start()
    scene.catch_up()
    assert "taking a snapshot" not in scene.daemon.run.log_text()
    assert "registering" not in scene.daemon.run.log_text()
    wait_for("the master releases the logs", lambda: all(first >= snapshot for first in kept_from(scene)), 20)
    assert scene.daemon.terminate() == 0
    assert news(scene.check(), 2 * ROWS) == {("many", "c"): 4, ("many", "u"): 4}


def test_contents_and_changes_while_joining(scene: Scene) -> None:
    """What others write meanwhile comes with JOIN's last rows or with the stream, and once."""
    scene.tarantool.eval(_WRITE)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    assert id_of(scene) == 2
    scene.tarantool.eval("writing = false")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.check()
    assert verified(scene.daemon)[:2] == (0, [])


def test_anonymous_daemon_becomes_a_registered_one(scene: Scene) -> None:
    """Its position is the same, with changes behind it that this master leaves out of its answer to REGISTER."""
    scene.daemon.settings["source"]["mode"] = "anonymous"
    catch_up_and_stop(scene)
    assert id_of(scene) is None
    scene.tarantool.eval("for id = 100, 109 do box.space.many:insert{id, 0, 'between'} end")
    scene.tarantool.eval(
        """
        writing = true
        require('fiber').create(function()
            for id = 1000, 100000 do
                if not writing then break end
                box.space.many:insert{id, 0, 'meanwhile'}
                require('fiber').sleep(0.001)
            end
        end)
        """
    )
    scene.daemon.settings["source"]["mode"] = "registered"
    scene.daemon.start()
    wait_for("it has an id, though the master is never caught up with to the row", lambda: id_of(scene) == 2)
    (written,) = scene.tarantool.eval("writing = false return box.space.many:len()")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    said = scene.daemon.run.log_text()
    assert 0 < said.index("catching up as an anonymous replica") < said.index("registering"), (
        "its id would end the keeping of logs"
    )
    assert "taking a snapshot" not in said
    assert news(scene.check(), 2 * ROWS) == {("many", "c"): written - ROWS}


def test_id_that_is_given_back(scene: Scene) -> None:
    scene.daemon.start()
    scene.catch_up()
    assert command(scene) == (2, "nothing was done\ntarantool-cdc: there is no terminal to ask for confirmation. Pass --yes.\n")
    status, said = command(scene, "--yes")
    assert status == 1
    assert "is connected to" in said
    assert "Stop it" in said
    assert id_of(scene) == 2
    assert scene.daemon.terminate() == 0
    status, said = command(scene, "--yes")
    assert (status, said) == (0, f"127.0.0.1:{scene.tarantool.port}: id 2 of instance {uuid_of(scene)} was given back\n")
    assert scene.tarantool.eval("return box.info.replication[2] == nil, box.space._cluster:len()") == [True, 1]
    wait_for("no log is kept for it", lambda: scene.tarantool.eval(_CONSUMERS, uuid_of(scene)) == [[]])
    status, said = command(scene, "--yes")
    assert status == 0
    assert "nothing to give back" in said
    # Later it wants its changes after all, and the logs are gone.
    scene.tarantool.eval("box.space.many:insert{100, 0, 'x'}")
    forget_logs(scene)
    scene.daemon.settings["source"]["on_gap"] = "resnapshot"
    catch_up_and_stop(scene)
    assert "no longer has the logs" in scene.daemon.run.log_text()
    assert id_of(scene) == 2
    found = news(scene.check(), 2 * ROWS)
    found.pop(("idle", "u"), None)
    assert found == {("many", "c"): 1}


def test_user_that_may_not_be_registered(scene: Scene) -> None:
    scene.tarantool.eval(
        "box.schema.user.create('reader', {password = 's3cret'}) box.schema.user.grant('reader', 'read', 'universe')"
    )
    scene.daemon.settings["source"]["uris"] = [f"reader:s3cret@127.0.0.1:{scene.tarantool.port}"]
    said = complaint(scene.daemon)
    assert "'_cluster'" in said
    assert "'replication'" in said
    assert id_of(scene) is None
    # What it may not give, it may not take away either.
    scene.tarantool.eval("box.space._cluster:insert{2, ...}", uuid_of(scene))
    status, said = command(scene, "--yes")
    assert status == 1
    assert "'_cluster'" in said
    assert id_of(scene) == 2


def test_read_only_server_is_waited_out_and_synchronous_transaction_gets_no_help(scene: Scene) -> None:
    """It counts as a member, and acknowledges such a transaction only once the others have made it certain."""
    scene.tarantool.eval(
        "box.schema.space.create('sure', {is_sync = true}):create_index('primary') "
        "box.cfg{replication_synchro_quorum = 2, replication_synchro_timeout = 1.2, read_only = true}"
    )
    scene.daemon.settings["source"]["ack_interval_ms"] = 100
    scene.daemon.start()
    scene.daemon.wait_until(
        "it waits", lambda status: all(word in (status["error"] or "") for word in ("read-only", "leader to source.uris"))
    )
    assert "leader to source.uris" in scene.daemon.run.log_text()
    scene.tarantool.eval("box.cfg{read_only = false}")
    scene.catch_up()
    insert = "return pcall(box.space.sure.insert, box.space.sure, {...})"
    done, reason = scene.tarantool.eval(insert, 1)
    assert not done
    assert "Quorum" in reason
    scene.tarantool.eval("box.cfg{replication_synchro_quorum = 1}")
    assert scene.tarantool.eval(insert, 2) == [True, [2]]
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    assert news(scene.check(), 2 * ROWS) == {("sure", "c"): 1}
