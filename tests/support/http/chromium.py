"""A page in Debian's Chromium, controlled through the protocol of its developer tools.

This needs no library: the protocol is JSON over a websocket, which aiohttp supports. The page's requests, the requests
that its policy refused, and its script errors are recorded, so that a test can assert that there were no errors.
"""

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = "chromium"
START_S = 60.0
DEADLINE_S = 30.0
ARGUMENTS = (
    "--headless=new",
    # Chromium's own sandbox does not run as root. The pages come only from loopback.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-port=0",
    # Only loopback addresses resolve.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}
"""Windows' codes of keys that are not characters."""


@dataclass
class Chromium:
    """The browser's end of the websocket: calls by number, events by session. ``downloads`` is the folder for files."""

    socket: aiohttp.ClientWebSocketResponse
    downloads: Path
    asked: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    pages: dict[str, "Page"] = field(default_factory=dict)
    count: int = 0

    async def call(self, method: str, session: str | None = None, **params: object) -> Any:
        """Make a call; return its result."""
        self.count += 1
        sent: dict[str, object] = {"id": self.count, "method": method, "params": params}
        if session is not None:
            sent["sessionId"] = session
        answer = self.asked[self.count] = asyncio.get_running_loop().create_future()
        await self.socket.send_json(sent)
        told = await asyncio.wait_for(answer, DEADLINE_S)
        assert "error" not in told, (method, told["error"])
        return told["result"]

    async def listen(self) -> None:
        """Pass on the browser's messages, until the connection closes."""
        async for message in self.socket:
            told = json.loads(message.data)
            if "id" in told:
                self.asked.pop(told["id"]).set_result(told)
            elif (page := self.pages.get(told.get("sessionId", ""))) is not None:
                page.hear(told["method"], told["params"])

    async def open(self, url: str, *, width: int = 1280, is_dark: bool = False) -> "Page":
        """Open a page in a new browser context, which shares no storage with other pages."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        await self.call(
            "Browser.setDownloadBehavior",
            behavior="allow",
            browserContextId=context,
            downloadPath=str(self.downloads),
        )
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = Page(self, attached["sessionId"])
        self.pages[page.session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.look(width=width, is_dark=is_dark)
        await page.go(url)
        return page


@dataclass
class Page:
    """One tab. ``faults``: script errors, and requests that the page's policy refused. ``requests``: (method, URL)."""

    browser: Chromium
    session: str
    faults: list[str] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)

    async def call(self, method: str, **params: object) -> Any:
        """Make a call about this page."""
        return await self.browser.call(method, self.session, **params)

    def hear(self, method: str, told: dict[str, Any]) -> None:
        """Note events that show a fault."""
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.faults.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            # A 4xx or 5xx response is no fault of the page, which has to show it.
            if told["entry"]["source"] != "network":
                self.faults.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append((told["request"]["method"], told["request"]["url"]))

    async def look(self, *, width: int, is_dark: bool = False) -> None:
        """Set the width of the screen, and the theme that the reader prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        # Disable animations: a colour within a transition is neither the old nor the new one.
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    async def go(self, url: str) -> None:
        """Open a URL, and wait until it is loaded."""
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Return the value of an expression once it is true."""
        end = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            # A call is lost if the page navigates meanwhile.
            with suppress(AssertionError):
                if value := await self.run(f"(() => {condition})()"):
                    return value
            if asyncio.get_running_loop().time() > end:
                shown = await self.run("document.body.innerText")
                raise AssertionError(f"never came: {condition}; shown: {shown}")
            await asyncio.sleep(0.05)

    async def until_shown(self, text: str) -> None:
        """Wait until the page shows a text."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def click(self, selector: str, text: str = "") -> None:
        """Click the first element with the text, once it exists."""
        await self.until(
            f"{{ const found = [...document.querySelectorAll({json.dumps(selector)})]"
            f".find((e) => !e.disabled && e.textContent.includes({json.dumps(text)}));"
            " found?.click(); return found !== undefined; }"
        )

    async def fill(self, selector: str, text: str) -> None:
        """Replace the text of a field by typing."""
        await self.until(
            f"{{ const found = document.querySelector({json.dumps(selector)});"
            " found?.focus(); found?.select?.(); return found && document.activeElement === found; }"
        )
        await self.call("Input.insertText", text=text)

    async def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select element."""
        await self.until(
            f"{{ const found = document.querySelector({json.dumps(selector)});"
            f" if (!found) return false; found.value = {json.dumps(value)};"
            " found.dispatchEvent(new Event('change', { bubbles: true })); return true; }"
        )

    async def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    async def picture(self, path: Path) -> None:
        """Save a screenshot of the whole page."""
        # With scrollbars, the screenshot would be narrower by their width.
        await self.call("Emulation.setScrollbarsHidden", hidden=True)
        await self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))")
        size = "[innerWidth, Math.max(innerHeight, document.documentElement.scrollHeight)]"
        width, height = await self.run(size)
        told = await self.call(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
        )
        path.write_bytes(base64.b64decode(told["data"]))


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Chromium]:
    """Start the browser, and stop it after the block; ``profile`` is the folder for its files."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *ARGUMENTS,
        f"--user-data-dir={profile}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port, path = await asyncio.wait_for(_address(profile), START_S)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0) as socket,
        ):
            browser = Chromium(socket, profile / "downloads")
            listening = asyncio.create_task(browser.listen())
            try:
                yield browser
            finally:
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening
    finally:
        # The browser's helper processes are in its process group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _address(profile: Path) -> tuple[str, str]:
    while True:
        with suppress(FileNotFoundError, ValueError):
            port, path = (profile / "DevToolsActivePort").read_text(encoding="ascii").split()
            return port, path
        await asyncio.sleep(0.05)
