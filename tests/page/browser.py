# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A headless Chromium, driven over its debugging pipe (--remote-debugging-pipe): JSON texts that end with a zero byte,
on descriptors 3 and 4. Needs nothing but the standard library."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# A loaded machine takes half a minute to start the browser.
PATIENCE_S = 120


class Browser:
    """One page of one browser. Collects what the page asks for and complains about."""

    def __init__(self, program="chromium"):
        self.folder = tempfile.mkdtemp(prefix="millrace-page-")
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--disable-component-update", "--no-first-run", "--mute-audio",
            "--remote-debugging-pipe", "--user-data-dir=" + self.folder, "about:blank",
        ]
        fixed = {3: to_read, 4: to_write}

        def place():
            # Both are moved out of the way first: one may already be 3 or 4.
            spare = {number: os.dup(end) for number, end in fixed.items()}
            for number, end in spare.items():
                os.dup2(end, number)

        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.process = subprocess.Popen(
            command, preexec_fn=place, pass_fds=(3, 4, to_read, to_write), stdout=self.log, stderr=self.log
        )
        os.close(to_read)
        os.close(to_write)
        self.buffer = b""
        self.number = 0
        self.requests, self.errors, self.bytes = [], [], 0
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility", "Security"):
            self.call(domain + ".enable")

    def close(self):
        """Ends the browser."""
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(20)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _message(self, until):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], max(0, until - time.monotonic()))
            if not ready:
                return None
            part = os.read(self.read_end, 1 << 16)
            if not part:
                raise RuntimeError("the browser ended: " + open(self.log.name).read()[-2000:])
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message):
        kind, values = message.get("method"), message.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif kind == "Network.loadingFinished":
            self.bytes += values["encodedDataLength"]
        elif kind == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"])[:500])
        elif kind == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(values["args"])[:500])
        elif kind == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.errors.append(values["entry"]["text"] + " " + values["entry"].get("url", ""))

    def call(self, method, **parameters):
        """Calls a method of the protocol, and returns its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._message(until)
            if answer is None:
                raise RuntimeError(method + " is not answered")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(method + ": " + answer["error"]["message"])
                return answer["result"]

    def listen(self, seconds):
        """Takes events for a while."""
        until = time.monotonic() + seconds
        while self._message(until) is not None:
            pass

    def open(self, url):
        """Opens a page. Takes any certificate: the test knows whom it asks."""
        self.call("Security.setIgnoreCertificateErrors", ignore=True)
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise RuntimeError(url + ": " + failed)

    def value(self, expression):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(expression + ": " + json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def wait(self, what, expression):
        """Waits until an expression is true; returns it."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                value = self.value(expression)
            except RuntimeError as error:
                # The page is not there yet.
                value = error
            if value and not isinstance(value, RuntimeError):
                return value
            if time.monotonic() > until:
                raise AssertionError(f"{what}: {expression} stays {value!r}; the page: "
                                     + str(self.value("document.body.innerText"))[:2000])
            self.listen(0.1)

    def size(self, width, height, dark=False):
        """The size of the window, and the scheme of colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path):
        """A picture of the window."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def accessible(self):
        """Role and name of everything that a screen reader meets."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        value = lambda node, field: node.get(field, {}).get("value", "")
        return [(value(node, "role"), value(node, "name")) for node in nodes if not node.get("ignored")]
