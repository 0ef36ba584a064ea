"""A real browser for tests: Chromium without a window, driven over its DevTools pipe.

Chromium reads commands from its file 3 and writes answers and events to its file 4. Each is a JSON text
that ends with a zero byte. So no driver and no port are needed. No name resolves, and nothing goes
through a proxy, so only this machine can be reached; every request is recorded all the same.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import selectors
import shutil
import subprocess
import time
from contextlib import contextmanager

WAIT_S = 120.0  # generous: a page is there after a moment
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
MISSING = "no Chromium here; as root on Debian, `make test` installs it: apt install chromium"


class Browser:
    """One Chromium process; `page` opens a page in it."""

    def __init__(self, folder):
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        words = [
            PROGRAM,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--no-proxy-server"),
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
            *("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
        ]
        # the shell puts the pipes where Chromium looks for them
        given = f'exec 3<&{to_child} 4>&{from_child}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", given, "bash", *words],
            pass_fds=(to_child, from_child),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._numbers, self._buffer = itertools.count(1), b""
        self._answers, self._listeners = {}, {}
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._in, selectors.EVENT_READ)

    def close(self):
        """End the process."""
        self.call("Browser.close")
        self._process.wait(WAIT_S)
        self._ready.close()
        os.close(self._in)
        os.close(self._out)

    def call(self, method, session=None, **parameters):
        """Call a method of the DevTools protocol, and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        until = time.monotonic() + WAIT_S
        while number not in self._answers:
            assert self.hear(until - time.monotonic()), f"no answer to {method} in {WAIT_S:g} s"
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def hear(self, seconds):
        """Take what Chromium writes within some seconds, and return whether there was anything."""
        if not self._ready.select(max(0.0, seconds)):
            return False
        data = os.read(self._in, 1 << 20)
        assert data, "Chromium has ended"
        *texts, self._buffer = (self._buffer + data).split(b"\0")
        for text in texts:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                listener = self._listeners.get(message.get("sessionId"))
                if listener is not None:
                    listener(message["method"], message["params"])
        return True

    @contextmanager
    def page(self, address, *, dark=False, width=1000, height=1400):
        """Open an address in a page of its own, and close it at the end."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, session["sessionId"])
        self._listeners[session["sessionId"]] = page.hear
        try:
            page.open(address, dark=dark, width=width, height=height)
            yield page
        finally:
            del self._listeners[session["sessionId"]]
            self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """One page; ``requests`` are the addresses that it asked for, and ``complaints`` its errors."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.requests, self.complaints, self._is_loaded = [], [], False

    def hear(self, method, parameters):
        """Keep what happens."""
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(str(parameters["args"]))
        elif method == "Page.loadEventFired":
            self._is_loaded = True

    def open(self, address, *, dark, width, height):
        """Go to an address, and wait until everything has been loaded."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.look(dark=dark, width=width, height=height)
        self.call("Page.navigate", url=address)
        self.wait_for(lambda: self._is_loaded, f"{address} to load")

    def look(self, *, dark, width, height):
        """Set the color scheme and the size of the window."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def call(self, method, **parameters):
        """Call a method of the DevTools protocol for this page."""
        return self._browser.call(method, self._session, **parameters)

    def run(self, script):
        """Return the value of a JavaScript expression."""
        given = {"expression": script, "returnByValue": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, is_true, what):
        """Wait until something holds: a function, or a JavaScript expression."""
        until = time.monotonic() + WAIT_S
        while not (is_true() if callable(is_true) else self.run(is_true)):
            assert time.monotonic() < until, f"waited {WAIT_S:g} s for {what}"
            self._browser.hear(0.05)

    def picture(self, path):
        """Write the whole page as a PNG file."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def printed(self):
        """Return the page as PDF, with the paper and the margins that the page asks for."""
        paper = {"preferCSSPageSize": True, "printBackground": True}
        return base64.b64decode(self.call("Page.printToPDF", **paper)["data"])
