"""A page in Debian's chromium, driven by the protocol of its developer tools.

It takes no library: the protocol is JSON over a websocket, and aiohttp speaks that. What a page asks for, what it is
refused and what goes wrong in it are kept, so that a test can say that nothing did.
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
    # Chromium's own sandbox needs a user that is not root; what it shows here comes from loopback alone.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-port=0",
    # Nothing but loopback has an address.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}
"""Windows' codes of keys that mean more than a character."""


@dataclass
class Chromium:
    """The browser's end of the websocket: questions by number, events by session. ``downloads``: where files go."""

    socket: aiohttp.ClientWebSocketResponse
    downloads: Path
    asked: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    pages: dict[str, "Page"] = field(default_factory=dict)
    count: int = 0

    async def call(self, method: str, session: str | None = None, **params: object) -> Any:
        """One question and its answer."""
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
        """Hand out what the browser says, until it goes."""
        async for message in self.socket:
            told = json.loads(message.data)
            if "id" in told:
                self.asked.pop(told["id"]).set_result(told)
            elif (page := self.pages.get(told.get("sessionId", ""))) is not None:
                page.hear(told["method"], told["params"])

    async def open(self, url: str, *, width: int = 1280, is_dark: bool = False) -> "Page":
        """A page of its own, with nothing of the others' in its storage."""
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
    """One tab. ``faults``: errors of scripts, and what the page's policy refused. ``requests``: method and URL."""

    browser: Chromium
    session: str
    faults: list[str] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)

    async def call(self, method: str, **params: object) -> Any:
        """A question to this page."""
        return await self.browser.call(method, self.session, **params)

    def hear(self, method: str, told: dict[str, Any]) -> None:
        """Keep what tells of trouble."""
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.faults.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            # That an answer was a 4xx or 5xx is the page's to show.
            if told["entry"]["source"] != "network":
                self.faults.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append((told["request"]["method"], told["request"]["url"]))

    async def look(self, *, width: int, is_dark: bool = False) -> None:
        """How wide the screen is, and which theme the reader likes."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        # A colour on its way to another one is neither of both.
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    async def go(self, url: str) -> None:
        """Follow a link, or an address of the page itself."""
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression, or of its promise."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, condition: str) -> Any:
        """The value of an expression once it is true of what is shown."""
        end = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            # A page that is on its way to another one loses the question.
            with suppress(AssertionError):
                if value := await self.run(f"(() => {condition})()"):
                    return value
            if asyncio.get_running_loop().time() > end:
                shown = await self.run("document.body.innerText")
                raise AssertionError(f"never came: {condition}; shown: {shown}")
            await asyncio.sleep(0.05)

    async def until_shown(self, text: str) -> None:
        """Wait for a text."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def click(self, selector: str, text: str = "") -> None:
        """Click the first element that has the text, once it is there."""
        await self.until(
            f"{{ const found = [...document.querySelectorAll({json.dumps(selector)})]"
            f".find((e) => !e.disabled && e.textContent.includes({json.dumps(text)}));"
            " found?.click(); return found !== undefined; }"
        )

    async def fill(self, selector: str, text: str) -> None:
        """Put the cursor into a field and type, in place of what it holds."""
        await self.until(
            f"{{ const found = document.querySelector({json.dumps(selector)});"
            " found?.focus(); found?.select?.(); return found && document.activeElement === found; }"
        )
        await self.call("Input.insertText", text=text)

    async def choose(self, selector: str, value: str) -> None:
        """Choose from a list."""
        await self.until(
            f"{{ const found = document.querySelector({json.dumps(selector)});"
            f" if (!found) return false; found.value = {json.dumps(value)};"
            " found.dispatchEvent(new Event('change', { bubbles: true })); return true; }"
        )

    async def press(self, key: str) -> None:
        """One key, as a keyboard sends it."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    async def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        # Else it would be as much narrower as they are wide.
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
    """The browser for as long as the block runs; it keeps what it must in the folder."""
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
        # Its helpers are in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _address(profile: Path) -> tuple[str, str]:
    while True:
        with suppress(FileNotFoundError, ValueError):
            port, path = (profile / "DevToolsActivePort").read_text(encoding="ascii").split()
            return port, path
        await asyncio.sleep(0.05)
