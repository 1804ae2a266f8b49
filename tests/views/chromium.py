"""Chromium without a window, told what to do through pipes: no driver, no other package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # which the root of a container cannot have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--in-process-gpu",
    "--no-zygote",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--window-size=1280,900",
)


class Chromium:
    """One page, of which every message, error and request is kept."""

    def __init__(self, folder):
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # the browser reads from 3 and writes to 4, whatever numbers are free here
        command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, FOUND, *_OPTIONS, f"--user-data-dir={folder}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._count, self._session = b"", 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self, seconds=120):
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], max(0, end - time.monotonic()))[0], "no answer"
            read = os.read(self._in, 2**20)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        answer = json.loads(message)
        if "method" in answer:
            self.events.append((answer["method"], answer["params"]))
        return answer

    def open(self, file):
        self.call("Page.navigate", url=file.as_uri())
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            self._read()

    def evaluate(self, script):
        """Value of an expression, or of what it promises."""
        how = {"awaitPromise": True, "returnByValue": True}
        done = self.call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self):
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def said(self):
        """Messages of the console, errors, and what the browser logged."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event[0] in kinds]

    def requested(self):
        return [
            parameters["request"]["url"]
            for method, parameters in self.events
            if method == "Network.requestWillBeSent"
        ]

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
