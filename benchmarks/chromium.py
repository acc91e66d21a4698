"""Headless Chromium for the scripts that check and photograph pages, driven over a pipe.

Chromium reads commands of the DevTools protocol from its file descriptor 3 and answers on 4, as JSON with a zero byte
after each message. This needs no other package, but a system of the Unix family.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    *("--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"),
)
TIMEOUT = 120.0  # seconds to wait for an answer

Json = dict[str, Any]


def find_chromium(program: str | None) -> str:
    """Return the path of Chromium; end the program with one line if there is none."""
    path = shutil.which(program) if program else next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        raise SystemExit("Chromium was not found; install it, or name it with --chromium")
    return path


class Browser:
    """A browser with a new profile, which is deleted when the browser ends. Downloads are saved in `downloads`."""

    def __init__(self, program: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.downloads = Path(self._folder.name) / "downloads"
        command = [find_chromium(program), *OPTIONS, f"--user-data-dir={self._folder.name}/profile"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run its sandbox as root
        (theirs_in, self._write), (self._read, theirs_out) = _pipe(), _pipe()
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs_in, 3),
            (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        self._process = os.posix_spawn(command[0], [*command, "about:blank"], os.environ, file_actions=actions)
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number = b"", 0
        self.events: list[Json] = []
        self.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads), eventsEnabled=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, RuntimeError):
            self.send("Browser.close")
        os.close(self._write)
        os.close(self._read)
        os.waitpid(self._process, 0)
        self._folder.cleanup()

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Json:
        """Send a command, and return its result. Events that come before it are added to `events`."""
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + TIMEOUT
        while (answer := self._message(deadline)) is not None:
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self.events.append(answer)
        raise RuntimeError(f"{method}: no answer in {TIMEOUT:.0f} s")

    def wait(self, method: str, start: int, seconds: float = TIMEOUT) -> Json | None:
        """Return the first event of a kind from index ``start`` of `events` on; None if it does not come in time."""
        deadline = time.monotonic() + seconds
        while True:
            for event in self.events[start:]:
                if event.get("method") == method:
                    return event
            message = self._message(deadline)
            if message is None:
                return None
            self.events.append(message)

    def _message(self, deadline: float) -> Json | None:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                return None
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


class Tab:
    """A tab of a browser."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Json:
        """Send a command to the tab, and return its result."""
        return self.browser.send(method, self.session, **parameters)

    def show(self, width: int, height: int = 900, *, dark: bool = False, paper: bool = False, scale: float = 1) -> None:
        """Set the size of the window in CSS pixels, the theme of the system, and the medium."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=[theme])

    def open(self, page: Path) -> None:
        """Open a file, and wait until it is loaded and painted."""
        self.visit(page.resolve().as_uri())

    def visit(self, address: str) -> None:
        """Open an address, and wait until it is loaded and painted."""
        start = len(self.browser.events)
        self.send("Page.navigate", url=address)
        if self.browser.wait("Page.loadEventFired", start) is None:
            raise RuntimeError(f"{address}: not loaded in {TIMEOUT:.0f} s")
        self.settle()

    def settle(self) -> None:
        """Wait until the page has been painted twice."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")

    def run(self, script: str) -> Any:
        """Return the value of an expression of JavaScript; promises are awaited."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Send an event of the mouse: ``mouseMoved``, ``mousePressed`` or ``mouseReleased``."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        held = {"buttons": 1} if kind == "mousePressed" else {}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button, **held)

    def click(self, x: float, y: float) -> None:
        """Click on a place of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def press(self, key: str, code: int, *, control: bool = False) -> None:
        """Press a key without a text, such as ``ArrowRight``; ``code`` is its number in events of the keyboard."""
        held = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 2 if control else 0}
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **held)

    def picture(self, path: Path, *, whole: bool = False, clip: Json | None = None) -> None:
        """Save the window, the whole page, or a rectangle of the page as a PNG file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        options: Json = {"clip": clip | {"scale": 1}} if clip else {}
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=whole or clip is not None, **options)
        path.write_bytes(base64.b64decode(answer["data"]))


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe, neither of which is a descriptor that Chromium expects."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
