"""A headless Chromium that the tests speak to by its DevTools protocol, over two pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import HANG_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--force-device-scale-factor=1", "--remote-debugging-pipe",
)  # fmt: skip


def find_browser() -> str | None:
    """`$MGSPMV_BROWSER`, or the first of `NAMES` that is there."""
    return os.environ.get("MGSPMV_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


needs_browser = pytest.mark.external(*([] if find_browser() else ["chromium"]))
"""Asks for Chromium where no other browser is found."""


class Browser:
    """One page."""

    def __init__(self, commands: int, answers: int) -> None:
        self.complaints: list[str] = []
        """What the console says, and what is fetched other than the page."""
        self._commands, self._answers = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb", 0)
        self._rest, self._number, self._session = b"", 0, None
        self._events: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and give what it answers."""
        self._number += 1
        session = {} if self._session is None else {"sessionId": self._session}
        command = {"id": self._number, "method": method, "params": params} | session
        self._commands.write(json.dumps(command).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return message["result"]

    def show(self, path: Path, width: int = 1280, *, media: str = "screen", scheme: str = "light") -> None:
        """Open a file at this width."""
        self.visit(path.absolute().as_uri(), width, media=media, scheme=scheme)

    def visit(self, url: str, width: int = 1280, *, media: str = "screen", scheme: str = "light") -> None:
        """Open an address at this width."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)
        self._events.clear()
        self.send("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._read()

    def evaluate(self, script: str) -> Any:
        """The JSON value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def photograph(self) -> bytes:
        """All of the page as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def print(self) -> bytes:
        """The page as PDF, A4."""
        self.send("Emulation.setEmulatedMedia", media="print", features=[])
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        return base64.b64decode(self.send("Page.printToPDF", **paper)["data"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            some = self._answers.read(1 << 20)
            assert some, "the browser is gone"
            self._rest += some
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        self._events.append(method)
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))
        elif method == "Network.requestWillBeSent" and params["type"] != "Document":
            self.complaints.append(params["request"]["url"])


@contextmanager
def start_browser(program: str, profile: Path) -> Iterator[Browser]:
    """A browser that is ended, whatever happens."""
    own, theirs = [_lift(end) for end in os.pipe()], [_lift(end) for end in os.pipe()]

    def place() -> None:
        os.dup2(own[0], 3)  # where it reads commands
        os.dup2(theirs[1], 4)  # where it answers

    command = [program, *ARGUMENTS, f"--user-data-dir={profile}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, pass_fds=(3, 4), preexec_fn=place, **quiet)
    os.close(own[0])
    os.close(theirs[1])
    try:
        yield Browser(own[1], theirs[0])
    finally:
        process.terminate()
        try:
            process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _lift(end: int) -> int:
    """The same pipe at a number that is not one of those that the browser wants."""
    lifted = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return lifted
