"""A replica set of live members, each of which follows all others, and what can happen to one.

The members are processes: their directories are copied and put back, and their addresses are told to each other. Which of
them may write is the test's to say: all are writable, and `hand_over` leaves one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from cdc.local.options import TarantoolOptions
from cdc.local.ports import free_port
from cdc.local.servers import ServerKind, server_kind
from cdc.local.tarantool import PASSWORD, REPLICATION_USER, Tarantool
from tests.live.waiting import wait_for

only_processes = pytest.mark.skipif(
    server_kind() is not ServerKind.PROCESS, reason="needs a tarantool on this machine; containers are chosen"
)

_FOLLOWED = """
local count = 0
for _, peer in pairs(box.info.replication) do
    if peer.upstream ~= nil and peer.upstream.status == 'follow' then count = count + 1 end
end
return count
"""

_UPSTREAMS = """
local found = {}
for _, peer in pairs(box.info.replication) do
    if peer.upstream ~= nil then table.insert(found, {peer.id, peer.upstream.status, peer.upstream.message}) end
end
return found
"""

# The write may have to wait for its quorum, so it is a fiber's, and its outcome is asked for later.
_BEGIN_WRITE = """
local name, code = ...
outcomes = rawget(_G, 'outcomes') or {}
local write = assert(loadstring(code))
require('fiber').create(function()
    local is_good, problem = pcall(write)
    outcomes[name] = is_good and 'written' or tostring(problem)
end)
"""


class Cluster:
    """Members 0, 1, …, whose replica ids are 1, 2, …. Leaving the context ends them."""

    def __init__(self, directory: Path, size: int = 2, **options: Any) -> None:
        """Nothing is started yet. `options` are those of TarantoolOptions, the same for all."""
        self._directory = directory
        self._options = options
        self._ports = [free_port() for _ in range(size)]
        self._copy_count = 0
        self.members: list[Tarantool] = []

    def __enter__(self) -> Self:
        founders = [self._founder(number) for number in range(len(self._ports))]
        try:
            for founder in founders:
                founder.start()
        finally:
            for founder in reversed(founders):
                founder.stop()
        self.members = [self._member(number) for number in range(len(self._ports))]
        try:
            for member in self.members:
                member.start()
            self.wait_until_connected()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, number: int) -> Tarantool:
        return self.members[number]

    def __iter__(self) -> Iterator[Tarantool]:
        return iter(self.members)

    def close(self) -> None:
        """End all members."""
        for member in self.members:
            # A member that waits for a quorum doesn't end in order.
            member.kill()

    @property
    def uris(self) -> list[str]:
        """For `source.uris`, in the members' order."""
        return [self._uri(port) for port in self._ports]

    @property
    def running(self) -> list[Tarantool]:
        """The members that run, a paused one among them."""
        return [member for member in self.members if member.is_running]

    def at(self, address: str | None) -> Tarantool:
        """The member at this `host:port`."""
        return next(member for member in self.members if f"127.0.0.1:{member.port}" == address)

    # How they are joined.

    def configure(self, numbers: Sequence[int] | None = None, **options: Any) -> None:
        """`box.cfg` of these members, or of all that run, while they run: a restart forgets it."""
        for number, member in enumerate(self.members):
            if member.is_running if numbers is None else number in numbers:
                member.eval("box.cfg(...)", options)

    def hand_over(self, leader: int) -> None:
        """One member writes, the others that run don't."""
        for number, member in enumerate(self.members):
            if member.is_running:
                member.eval("box.cfg{read_only = ...}", number != leader)

    def wait_until_connected(self) -> None:
        """Each running member follows each other running one."""
        wanted = len(self.running) - 1
        for member in self.running:
            try:
                wait_for(f"{member.name} follows {wanted}", lambda: member.eval(_FOLLOWED)[0] >= wanted)  # noqa: B023
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.report()}") from None

    def wait_until_equal(self) -> dict[int, int]:
        """All running members have everything that any of them has; returns the vclock. Nobody may write meanwhile."""

        def is_equal() -> bool:
            return len({tuple(sorted(global_part(member.vclock()).items())) for member in self.running}) == 1

        wait_for("the members have the same", is_equal)
        return global_part(self.running[0].vclock())

    def report(self) -> str:
        """How the running members follow each other, and what they say."""
        return "\n".join(f"{member.name}: {member.eval(_UPSTREAMS)}\n{member.log_tail(8)}" for member in self.running)

    # Writes that may have to wait.

    def begin_write(self, number: int, name: str, code: str) -> None:
        """Have a member run Lua in a fiber; `outcome` tells what became of it."""
        self[number].eval(_BEGIN_WRITE, name, code)

    def outcome(self, number: int, name: str) -> str | None:
        """`written`, the error, or None while it waits."""
        found: list[str | None] = self[number].eval("return rawget(_G, 'outcomes') and outcomes[...]", name)
        return found[0] if found else None

    def wait_for_outcome(self, number: int, name: str) -> str:
        """What became of a write."""
        try:
            outcome = wait_for(f"the outcome of {name!r}", lambda: self.outcome(number, name), 30)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from None
        assert outcome is not None
        return outcome

    # What can happen to a member. Killing, pausing and starting again are its own.

    def back_up(self, number: int) -> Path:
        """Stop a member, copy its directory and start it again; returns the copy."""
        self._copy_count += 1
        copy = self._directory / f"copy-{self._copy_count}"
        self[number].stop()
        shutil.copytree(self[number].work_dir, copy)
        self[number].start()
        return copy

    def restore(self, number: int, copy: Path) -> None:
        """A member, which doesn't run, becomes again what it was."""
        assert not self[number].is_running
        shutil.rmtree(self[number].work_dir)
        shutil.copytree(copy, self[number].work_dir)
        self[number].start()

    # Inside.

    def _founder(self, number: int) -> Tarantool:
        """A member for the time of its bootstrap: it knows the first only, else it would wait for all."""
        peers = [self._uri(self._ports[0])] if number else []
        options = TarantoolOptions(replication=peers)
        return Tarantool(self._place(number), options, port=self._ports[number], name=f"founder-{number}")

    def _member(self, number: int) -> Tarantool:
        box = {"replication_connect_quorum": 0, **self._options.get("box", {})}
        options = TarantoolOptions(**{"replication_timeout": 0.5, **self._options, "replication": self.uris, "box": box})
        return Tarantool(self._place(number), options, port=self._ports[number], name=f"member-{number}")

    def _place(self, number: int) -> Path:
        return self._directory / f"member-{number}"

    @staticmethod
    def _uri(port: int) -> str:
        return f"{REPLICATION_USER}:{PASSWORD}@127.0.0.1:{port}"


def global_part(vclock: dict[int, int]) -> dict[int, int]:
    """Without the changes of local spaces."""
    return {origin: lsn for origin, lsn in vclock.items() if origin}
