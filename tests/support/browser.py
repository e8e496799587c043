"""A real Chromium for tests, controlled over WebDriver: the console, network requests and pictures of a page."""

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ANSWER_DEADLINE_S = 120
STOP_DEADLINE_S = 20

# Without these, Chromium contacts Google's servers at every start.
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
PLAIN = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage")


@dataclass(frozen=True)
class Browser:
    """One page at a time."""

    base: str

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """The value that a function body returns in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def command(self, name: str, **parameters: Any) -> Any:
        """Run a command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def console(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("POST", "/se/log", {"type": "browser"})
        return found

    def requested(self) -> list[str]:
        """Every address that the page requested since the last call."""
        entries = self._ask("POST", "/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def picture(self) -> bytes:
        return base64.b64decode(self._ask("GET", "/screenshot"))

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        return _ask(method, self.base + path, body)


@contextmanager
def browser(*, width: int = 1280, height: int = 1600) -> Iterator[Browser]:
    """A fresh Chromium with an empty profile, ended with its driver."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            raise FileNotFoundError(f"{program}: not installed; run make setup")
    with tempfile.TemporaryDirectory() as profile:
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            address = f"http://127.0.0.1:{_port(driver)}"
            options = {
                "binary": shutil.which("chromium"),
                "args": [*PLAIN, *QUIET, f"--user-data-dir={profile}", f"--window-size={width},{height}"],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
            session = _ask("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
            page = Browser(f"{address}/session/{session['sessionId']}")
            try:
                yield page
            finally:
                _ask("DELETE", page.base)
        finally:
            driver.terminate()
            try:
                driver.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()
            assert driver.stdout is not None
            driver.stdout.close()


def _port(driver: subprocess.Popen[bytes]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        match = re.search(rb"started successfully on port (\d+)", line)
        if match:
            return int(match[1])
    raise AssertionError("chromedriver ended before it printed its port")


def _ask(method: str, url: str, body: object = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=method)
    # Loopback only: do not use a proxy from the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=ANSWER_DEADLINE_S) as answer:
        return json.load(answer)["value"]
