"""One thread, one clock, one seed: tasks that take turns, and what they wait for.

    heap of (time, order) ──▶ a callback of the world, or a task that goes on ──▶ until it waits for something ──▶ the next

A task is a greenlet that runs the product's code, unchanged. It gives way only where that code waits, or where a thread could be
interrupted with effect: at a lock, at an event, when it looks at the clock. Who is next is decided by the simulated time, which
has a little jitter, so that another seed gives another order. Simulated time jumps to the next event: waiting costs nothing.

A process is a group of tasks. To kill one is to never let its tasks go on: whatever they would touch next raises `Killed`.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from greenlet import getcurrent, greenlet

JITTER_SECONDS: Final = 0.0003
PREEMPTION: Final = 0.02
"""Share of the looks at the clock at which another task may go first."""


class Killed(BaseException):
    """The process has ended: its code goes no further."""


class Process:
    """Tasks that live and die together, on one machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_frozen = False
        """Whether it stands still (SIGSTOP): its tasks go on when it is thawed."""
        self.thawing: list[Callable[[], None]] = []
        """What has to go on then."""
        self.is_over = False
        """Whether it has ended by itself."""
        self.tasks: list[Task] = []
        self.at_kill: list[Callable[[], None]] = []
        """What the system does when the process ends: locks are released, connections are closed."""

    @property
    def is_awake(self) -> bool:
        """Whether it runs."""
        return self.is_alive and not self.is_over and not self.is_frozen


class Task:
    """A thread of a process."""

    def __init__(self, process: Process, name: str, run: Callable[[], None], hub: greenlet) -> None:
        self.process = process
        self.name = name
        self.turn = 0
        """Number of the wait that may be ended now; earlier ones can't be ended any more."""
        self.is_done = False
        self.joined: list[Task] = []
        self.greenlet = greenlet(run, hub)


class Scheduler:
    """The simulated time, and whose turn it is."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.step_count = 0
        self.current: Task | None = None
        self.failure: BaseException | None = None
        self.trace: deque[str] = deque(maxlen=100)
        """The last steps, for the transcript of a failure."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._hub = getcurrent()

    # The world.

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back later."""
        self._order += 1
        heapq.heappush(self._heap, (self.now + seconds, self._order, callback))

    def run(self, until: Callable[[], bool], limit_seconds: float, *, check: Callable[[], None]) -> bool:
        """Go on until the condition holds. Return whether it does within so much simulated time. `check` runs at each step."""
        limit = self.now + limit_seconds
        while not until():
            if not self._heap or self._heap[0][0] > limit:
                self.now = limit
                return False
            self.now, _, callback = heapq.heappop(self._heap)
            self.step_count += 1
            callback()
            if self.failure is not None:
                raise self.failure
            check()
        return True

    def note(self, text: str) -> None:
        """Add a line to the transcript."""
        who = f"{self.current.process.name}/{self.current.name}" if self.current is not None else "world"
        self.trace.append(f"{self.now:11.4f} {who:24} {text}")

    def spawn(self, process: Process, name: str, run: Callable[[], None]) -> Task:
        """Start a task."""

        def body() -> None:
            try:
                self.check_alive()
                run()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - raised by `run`
                self.failure = error
            task.is_done = True
            for waiting in task.joined:
                self.wake(waiting)

        task = Task(process, name, body, self._hub)
        process.tasks.append(task)
        self.after(self._jitter(), lambda: self._resume(task, 0, True))
        return task

    def kill(self, process: Process) -> None:
        """End a process at once, as `kill -9` does."""
        assert self.current is None, "a process is killed from outside"
        process.is_alive = False
        for effect in process.at_kill:
            effect()
        for task in process.tasks:
            while not task.is_done and task.greenlet:
                self.current = task
                task.greenlet.throw(Killed)
                self.current = None
            task.greenlet = greenlet()
        process.tasks.clear()

    def freeze(self, process: Process) -> None:
        """Let a process stand still."""
        process.is_frozen = True

    def thaw(self, process: Process) -> None:
        """Let it go on."""
        process.is_frozen = False
        waiting, process.thawing = process.thawing, []
        for go_on in waiting:
            self.after(self._jitter(), go_on)

    # Tasks.

    def check_alive(self) -> None:
        """Raise Killed in a task whose process has ended."""
        if self.current is not None and not self.current.process.is_alive:
            raise Killed

    def touch(self) -> None:
        """Let another task go first, sometimes."""
        self.check_alive()
        if self.current is not None and self.random.random() < PREEMPTION:
            self.block(self._jitter())

    def block(self, seconds: float | None) -> bool:
        """Wait until another wakes this task, or the time has passed. Return whether it was woken."""
        task = self.current
        assert task is not None, "the world itself doesn't wait"
        self.check_alive()
        task.turn += 1
        turn = task.turn
        if seconds is not None:
            self.after(max(0.0, seconds), lambda: self._resume(task, turn, False))
        self.current = None
        is_woken: bool = self._hub.switch()
        self.check_alive()
        return is_woken

    def wake(self, task: Task) -> None:
        """End the present wait of a task."""
        turn = task.turn
        self.after(self._jitter(), lambda: self._resume(task, turn, True))

    def _resume(self, task: Task, turn: int, is_woken: bool) -> None:
        if task.turn != turn or task.is_done or not task.process.is_alive:
            return
        if task.process.is_frozen:
            task.process.thawing.append(lambda: self._resume(task, turn, is_woken))
            return
        task.turn += 1
        self.current = task
        task.greenlet.switch(is_woken) if turn else task.greenlet.switch()
        self.current = None

    def _jitter(self) -> float:
        return self.random.random() * JITTER_SECONDS


class Waiters:
    """Tasks that wait for one thing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tasks: list[Task] = []

    def wait(self, seconds: float | None) -> bool:
        """Wait in the current task; return whether it was woken."""
        task = self._scheduler.current
        assert task is not None
        self._tasks.append(task)
        try:
            return self._scheduler.block(seconds)
        finally:
            if task in self._tasks:
                self._tasks.remove(task)

    def wait_for(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until the condition holds; return whether it does in time."""
        scheduler = self._scheduler
        deadline = None if seconds is None else scheduler.now + seconds
        while not condition():
            left = None if deadline is None else deadline - scheduler.now
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True

    def wake(self) -> None:
        """Wake them all."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            self._scheduler.wake(task)
