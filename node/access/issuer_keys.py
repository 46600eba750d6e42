"""The keys of a token issuer, which a node reads from the configured place again and again.

They are read every quarter of an hour. If a token names an unknown key, they are read earlier, but at most once in
``ASK_MS``, because any caller can send such a token. If reading fails, the last good keys are used for a day.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from milena.model.clock import Clock
from node.access.key_set import KeySet, KeySetError, parse_keys
from node.process.https import FetchError

logger = logging.getLogger(__name__)

REFRESH_MS = 900_000
"""The time between two reads in ms. So this is how long a key may still be accepted after its issuer has removed it."""
ASK_MS = 30_000
KEPT_MS_MAX = 86_400_000


class IssuerKeys:
    """The present keys of an issuer. Owned by the event loop.

    ``where``: the place of the keys, for messages. ``read``: may raise ``OSError`` and ``FetchError``.
    """

    def __init__(self, *, where: str, read: Callable[[], Awaitable[bytes]], clock: Clock) -> None:
        self.where = where
        self._read = read
        self._clock = clock
        self.keys: KeySet | None = None
        """The keys; None if they were not read yet, or not for too long."""
        self.version = 0
        """A number that changes whenever the keys change."""
        self.failure = ""
        """Why the last read failed; empty if it succeeded or there was none."""
        self._document: bytes | None = None
        self._good_ms = 0
        self._asked_ms: int | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def may_ask(self) -> bool:
        """Whether a token may cause a read of the keys, or wait for the read in progress."""
        if self._asked_ms is None or self._reading is not None:
            return True
        return self._clock.now_ms() - self._asked_ms >= ASK_MS

    async def refresh(self) -> None:
        """Read the keys. Simultaneous calls share one read. If it fails, this sets ``failure`` and does not raise."""
        if self._reading is None:
            self._asked_ms = self._clock.now_ms()
            self._reading = asyncio.create_task(self._refresh(), name="issuer-keys")
        await asyncio.shield(self._reading)

    async def run(self) -> None:
        """Read the keys regularly, until cancelled."""
        try:
            while True:
                await self.refresh()
                await self._clock.sleep(ASK_MS if self.failure else REFRESH_MS)
        finally:
            if self._reading is not None:
                self._reading.cancel()

    def take(self, document: bytes) -> None:
        """Use the keys of this document from now on.

        Raises:
            KeySetError: the document has no usable key.
        """
        if document != self._document:
            keys = parse_keys(document)
            for why in keys.left_out:
                logger.warning(
                    "a key of the issuer is not used where=%s reason=%s", self.where, why
                )
            self.keys, self._document = keys, document
            self.version += 1
            logger.info("keys of the issuer where=%s count=%d", self.where, len(keys.keys))
        self._good_ms = self._clock.now_ms()
        self.failure = ""

    async def _refresh(self) -> None:
        try:
            self.take(await self._read())
        except (OSError, FetchError, KeySetError) as error:
            self._on_failure(str(error) or type(error).__name__)
        finally:
            self._reading = None

    def _on_failure(self, reason: str) -> None:
        if reason != self.failure:
            logger.warning("cannot read the issuer's keys where=%s reason=%s", self.where, reason)
        self.failure = reason
        if self.keys is not None and self._clock.now_ms() - self._good_ms > KEPT_MS_MAX:
            logger.error("the issuer's keys are too old to be trusted where=%s", self.where)
            self.keys, self._document = None, None
            self.version += 1
