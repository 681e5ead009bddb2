"""Drives Chromium by its DevTools protocol over two pipes: no library, no port."""

import json
import os
import subprocess
import tempfile
import threading
import time


class Browser:
    def __init__(self, chromium):
        self.folder = tempfile.TemporaryDirectory(prefix="rowlock-ui-", ignore_cleanup_errors=True)
        ours, theirs = os.pipe(), os.pipe()

        def fds():
            # Copies above 4 first: either end may be 3 or 4 itself.
            read, write = os.dup(ours[0]), os.dup(theirs[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        flags = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
                 "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
                 f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen([chromium, *flags], preexec_fn=fds, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(ours[0])
        os.close(theirs[1])
        self.write, self.read = ours[1], theirs[0]
        self.answers, self.events = {}, []
        self.told = threading.Condition()
        self.last = 0
        threading.Thread(target=self._listen, daemon=True).start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def _listen(self):
        rest = b""
        while piece := os.read(self.read, 1 << 16):
            *whole, rest = (rest + piece).split(b"\0")
            with self.told:
                for text in whole:
                    message = json.loads(text)
                    if "id" in message:
                        self.answers[message["id"]] = message
                    else:
                        self.events.append(message)
                self.told.notify_all()

    def send(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data):]
        with self.told:
            if not self.told.wait_for(lambda: message["id"] in self.answers, 30):
                raise TimeoutError(method)
            answer = self.answers.pop(message["id"])
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def run(self, script):
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, what, script, seconds):
        """Waits until `script` gives something true; gives the seconds that it took."""
        begun = time.monotonic()
        while True:
            try:
                holds, error = self.run(f"!!({script})"), ""
            except RuntimeError as failed:
                # The page is being left or is not built yet: the next one is asked.
                holds, error = False, failed
            if holds:
                return time.monotonic() - begun
            if time.monotonic() > begun + seconds:
                raise AssertionError(f"{what}: not within {seconds} s {error}; the page says:\n"
                                     + (self.run("document.body.innerText") or ""))
            time.sleep(0.02)

    def size(self, width, height=800, scheme="light"):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def go(self, url):
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)

    def key(self, name):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowDown": 40, "+": 187, "/": 191}
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name],
                      **(text if kind == "keyDown" else {}))

    def type(self, text):
        self.send("Input.insertText", text=text)

    def choose_file(self, selector, path):
        self.send("DOM.enable")
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", files=[path], nodeId=node)

    def requests(self):
        with self.told:
            return [event["params"]["request"]["url"] for event in self.events
                    if event["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        """What the console of the browser has: exceptions, and what the page's policy has stopped."""
        with self.told:
            return [event["params"] for event in self.events if event["method"] == "Runtime.exceptionThrown"]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()
