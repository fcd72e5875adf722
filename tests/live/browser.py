"""Headless Chromium, asked by its own protocol over a pipe: what a page shows, and pictures of it."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
DESK: Final = (1200, 900)
PHONE: Final = (390, 844)


class Page:
    """One open tab."""

    def __init__(self, send: BinaryIO, receive: BinaryIO) -> None:
        self._send, self._receive = send, receive
        self._numbers = itertools.count(1)
        self._session = ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.errors: list[str] = []
        """What the page's own programs have complained of."""
        self._ask("Runtime.enable")
        self._ask("Page.enable")

    def open(self, url: str) -> None:
        """Go to an address."""
        self.errors.clear()
        self._ask("Page.navigate", url=url)

    def look(self, size: tuple[int, int], *, is_dark: bool) -> None:
        """Have the page seen in a window of this size, in one of the colour schemes."""
        width, height = size
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self._ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def text(self, selector: str) -> str:
        """The text that a part of the page shows; "" if it isn't there or hidden."""
        return self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''") or ""

    def wait_for_text(self, selector: str, text: str, seconds: float = 60) -> str:
        """Wait until a part of the page shows a text; all that it shows then."""
        shown = ""
        until = time.monotonic() + seconds
        while text not in (shown := self.text(selector)):
            assert time.monotonic() < until, f"{text!r} isn't in {selector}, which shows {shown!r}; errors: {self.errors}"
            time.sleep(0.1)
        return shown

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        found: int = self.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return found

    def picture(self, file: Path, height: int) -> None:
        """Write the upper part of the page to a PNG."""
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self._ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        question: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            question["sessionId"] = self._session
        self._send.write(json.dumps(question).encode() + b"\0")
        self._send.flush()
        while True:
            said = self._next()
            if said.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(said["params"]["exceptionDetails"])[:500])
            if said.get("id") == number:
                if "error" in said:
                    raise AssertionError(f"{method}: {said['error']}")
                answer: dict[str, Any] = said["result"]
                return answer

    def _next(self) -> dict[str, Any]:
        found = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            if not byte:
                raise EOFError("Chromium has ended")
            found += byte
        said: dict[str, Any] = json.loads(found)
        return said


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with one page, and its files in a folder of the test's."""
    assert CHROMIUM is not None
    our_end, their_end = os.pipe(), os.pipe()
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    command += ["--remote-debugging-pipe", f"--user-data-dir={folder / 'chromium'}", "about:blank"]
    # It reads questions from descriptor 3, and writes answers to 4.
    shell = ["bash", "-c", f'exec "$@" 3<&{our_end[0]} 4>&{their_end[1]}', "bash", *command]
    process = subprocess.Popen(
        shell, pass_fds=(our_end[0], their_end[1]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(our_end[0])
    os.close(their_end[1])
    try:
        with os.fdopen(our_end[1], "wb") as send, os.fdopen(their_end[0], "rb") as receive:
            yield Page(send, receive)
    finally:
        process.terminate()
        process.wait(30)
