"""A real browser, driven through a pipe: each message is JSON, ended by a zero byte."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
PATIENCE = 30.0


class Browser:
    """A browser with one page. Collects what the page asks for and what it complains about."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        near_in, self._to = os.pipe()
        self._from, near_out = os.pipe()
        # The browser looks at 3 and 4. Since its ends may be any numbers, the shell moves them there by 8 and 9, which
        # they must not be themselves: so they are 10 or above.
        theirs_in, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (near_in, near_out))
        command = f'exec 8<&{theirs_in} 9>&{theirs_out} && exec "$0" {FLAGS} --user-data-dir="$1" 3<&8 4>&9'
        self._process = subprocess.Popen(
            ["bash", "-c", command, PROGRAM, str(profile)],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (near_in, near_out, theirs_in, theirs_out):
            os.close(end)
        self._rest, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path, width: int = 1600, scheme: str = "light", media: str = "screen") -> None:
        """Load a page and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.requests, self.complaints, self._loaded = [], [], False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The value of some JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        code = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Enter": 13}[key]
        typed = {"text": "\r"} if key == "Enter" else {}
        for kind, more in (("keyDown" if typed else "rawKeyDown", typed), ("keyUp", {})):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG file."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        try:
            self.call("Browser.close")
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._to)
            os.close(self._from)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "the browser has ended"
            self._rest += chunk
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, content: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(content["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(content["args"]))
        elif event == "Log.entryAdded":
            self.complaints.append(content["entry"]["text"])
        elif event == "Page.loadEventFired":
            self._loaded = True
