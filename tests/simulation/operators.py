"""What operators do with the daemon's commands, each in a process of its own: `verify`, `position export` and `position set`.

verify          the daemon is stopped, and its store is compared with a member's contents: it is never another one
position set    the checkpoint topic has lost everything, and what was exported some time ago is put there again
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cdc.commands import position
from cdc.commands.verify import verify
from cdc.errors import CdcError, RequestError
from tests.simulation.judge import CHECKPOINT

if TYPE_CHECKING:
    from pathlib import Path

    from cdc.config import Config
    from tests.simulation.world import World


class Operators:
    """The operators of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.are_busy = False
        """Whether the daemon must not be started yet."""
        self._export_count = 0

    def verify(self, seconds: float) -> None:
        """Stop the daemon, compare its store with the first member, and start it again."""
        world = self._world
        life = world.life
        if self.are_busy or life.daemon is None or life.is_over or not world.judge.has_images:
            return
        life.daemon.stop()
        self.are_busy = True

        def compare(config: Config) -> None:
            result = verify(config, lambda line: world.scheduler.note(f"verify: {line}"))
            world.walked["operator: verified"] += 1
            assert result.is_equal, f"the store isn't what the member has: {result.sentence}"

        world.scheduler.after(seconds + 0.5, lambda: self.when_over(lambda: self._run(compare)))

    def when_over(self, then: Callable[[], object]) -> None:
        """Go on when the daemon has ended."""
        if self._world.life.is_over or not self._world.life.process.is_alive:
            then()
        else:
            self._world.scheduler.after(0.2, lambda: self.when_over(then))

    def export(self, seconds: float) -> None:
        """Export the position; some time later Kafka loses all checkpoints, and it is put back."""
        if self.are_busy:
            return
        self._export_count += 1
        knows_last_row = self._world.judge.knows_last_row
        file = self._world.directory / f"position-{self._export_count}"
        self._run(lambda config: position.export(config, self._say, file), keeps_daemon=True)

        def lose() -> None:
            # Without the row, nobody would notice that what is put back is of another history.
            if knows_last_row or not self._world.judge.is_rewritten:
                self._lose_all(file)

        self._world.scheduler.after(seconds + 1.0, lose)

    def _lose_all(self, file: Path) -> None:
        world = self._world
        (topic,) = world.brokers.topics.get(CHECKPOINT, (None,))
        if topic is None or not file.exists() or self.are_busy or world.has_foreigner:
            return
        self.are_busy = True
        world.kill()
        world.brokers.faults.hanging = 0.0  # the judge has to know what the checkpoint is from here on
        topic.entries.clear()
        topic.open_from.clear()
        world.judge.may_jump = world.judge.may_forget = True
        world.judge.lost_writers()
        world.brokers.version += 1

        def put_back(config: Config) -> None:
            try:
                assert position.put_back(config, self._say, file, lambda _: True)
            except RequestError as error:
                # One that was frozen has gone on. As the command says, the daemon is started.
                self._say(str(error))
                return
            world.walked["operator: put a position back"] += 1
            world.brokers.changed.wait_for(lambda: not topic.open_from, None)
            world.judge.lost_checkpoints(topic)

        self._run(put_back, is_urgent=True)

    def _say(self, line: str) -> None:
        self._world.scheduler.note(f"position: {line}")

    def _run(self, command: Callable[[Config], None], *, keeps_daemon: bool = False, is_urgent: bool = False) -> None:
        """Run a command in a process of its own, again and again if it `is_urgent`, and then let the daemon be started."""
        world = self._world
        then: Callable[[], None] | None = None if keeps_daemon else self._done

        def main(config: Config) -> None:
            nonlocal then
            try:
                command(config)
            except CdcError as error:
                world.scheduler.note(f"the operator is told: {error}")
                if is_urgent:
                    then = partial(self._run, command, is_urgent=True)

        world.run_command(main, lambda: then() if then is not None else None)

    def _done(self) -> None:
        self.are_busy = False
        self._world.restart()
