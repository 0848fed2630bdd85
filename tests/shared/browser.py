"""A headless browser, driven through the pipe of its DevTools protocol; needs Chromium or Google Chrome and nothing else."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = [
    "--headless",
    "--remote-debugging-pipe",
    "--window-size=1280,900",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
]


def program() -> str | None:
    """The path of a browser, if one is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


# The browser reads commands from its file 3 and writes answers to its file 4.
WITH_PIPES = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, pipe in enumerate(pipes, 3):
    os.dup2(pipe, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A browser with one page. What the page asks of the network, and what it reports as errors, is in `events`."""

    def __init__(self, path: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        to_read, self._to_write = os.pipe()
        from_read, from_write = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [path, *QUIET, *sandbox, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", WITH_PIPES, str(to_read), str(from_write), *command],
            pass_fds=(to_read, from_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self._answers = os.fdopen(from_read, "rb")
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to_write)
        self._answers.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._answers.fileno(), 1 << 16)
            assert read, "the browser has ended"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def open(self, file: Path, query: str = "") -> None:
        """Open a file, with the query of an address, and wait until it is loaded."""
        self.events.clear()
        self.send("Page.navigate", url=f"{file.as_uri()}{query}")
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key: "Tab", "Enter", "ArrowRight", or a letter with itself as the text."""
        code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}.get(key, 0)
        what = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        if key == "Enter":
            text = "\r"
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **what)
        self.send("Input.dispatchKeyEvent", type="keyUp", **what)

    def write(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.send("Input.insertText", text=text)

    def screenshot(self, file: Path) -> None:
        """Save what the window shows as a PNG file."""
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def complaints(self) -> list[str]:
        """What the page reported as errors, violations of its policy among them."""
        found = []
        for event in self.events:
            if event.get("method") == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
        return found

    def requested(self) -> list[str]:
        """The addresses that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
