"""Chromium without a window, driven over a pipe: opens a page, presses keys, evaluates, takes pictures."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

PATH = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Chromium:
    """One page. Chromium reads commands of its DevTools protocol from file 3, and answers on file 4."""

    def __init__(self, *, width: int = 1280, height: int = 900) -> None:
        assert PATH is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.downloads = Path(self._folder.name, "downloads")
        self.downloads.mkdir()
        read, self._to = os.pipe()
        self._from, write = os.pipe()

        def place() -> None:  # as files 3 and 4, wherever the pipes are
            ends = [(fcntl.fcntl(pipe, fcntl.F_DUPFD, 10), number) for pipe, number in ((read, 3), (write, 4))]
            for end, number in ends:
                os.dup2(end, number)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [PATH, *options, f"--user-data-dir={self._folder.name}/profile"],
            pass_fds=(3, 4), preexec_fn=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._numbers, self._buffer, self._session = count(1), b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")
        self.size(width, height)
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads), eventsEnabled=True)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)
        self._process.kill()
        self._process.wait()
        os.close(self._from)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait(self, method: str) -> dict[str, Any]:
        """The next event of this kind."""
        while True:
            for place, event in enumerate(self.events):
                if event.get("method") == method:
                    return self.events.pop(place)
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._from, 1 << 16)
            if not more:
                raise RuntimeError("chromium has ended")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, path: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("Page.loadEventFired")

    def reload(self) -> None:
        self.events.clear()
        self.call("Page.reload")
        self.wait("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Keys by name (Enter, Escape, ArrowDown), or characters."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            known = {"key": key, "code": key if len(key) > 1 else "", **({"text": text} if text else {})}
            if key == "Enter":
                known["windowsVirtualKeyCode"] = 13
            self.call("Input.dispatchKeyEvent", type="keyDown", **known)
            self.call("Input.dispatchKeyEvent", type="keyUp", **{k: v for k, v in known.items() if k != "text"})

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, file: Path) -> None:
        """A file for an `<input type=file>`."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def picture(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
