"""Access control as in a node: the real services over the image of a ``FakeNode``; commands are applied at once."""

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from milena.model.types import MonotonicMs, WallMs
from node.access.callers import Callers
from node.access.passwords import Passwords
from node.access.scram_logins import ScramLogins
from node.access.service import AccessService
from raft_meta.machine.access import access
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Image
from tests.support.time.virtual_time import LoopExecutor

if TYPE_CHECKING:
    from node.metadata.store import MetadataStore
    from tests.support.fakes.ports import FakeNode

SILENCE_MS_MAX = 30_000


@dataclass
class HandClock:
    """A clock that only a test moves."""

    ms: int = 1_700_000_000_000

    def now_ms(self) -> MonotonicMs:
        return MonotonicMs(self.ms)

    def wall_ms(self) -> WallMs:
        return WallMs(self.ms)

    def expiry_ms(self) -> WallMs:
        return WallMs(self.ms)

    async def sleep(self, ms: float) -> None:
        self.ms += int(ms)


class ImageStore:
    """A metadata store for a ``FakeNode``: a proposed command is applied at once."""

    def __init__(self, node: "FakeNode", clock: HandClock) -> None:
        self._node = node
        self._clock = clock

    @property
    def image(self) -> Image:
        return self._node.image

    @property
    def quorum(self) -> "ImageStore":
        return self

    def start_obstacle(self) -> str:
        return ""

    async def current_image(self) -> Image:
        return await self._node.current_image()

    async def propose(self, command: access.AccessCommand, *, timeout_ms: int) -> object:
        assert timeout_ms > 0
        self._node.fail("propose")
        return self.apply(command)

    def apply(self, command: access.AccessCommand) -> object:
        image = self._node.image
        index = image.index + 1
        outcome = access.apply(image, index, self._clock.wall_ms(), command)
        self._node.image = replace(outcome.image, index=index)
        self._node.callers.attend()
        return outcome.response


class NodeAccess:
    """The access control of a ``FakeNode``; ``heard_ms`` is the time at which it last heard from the quorum."""

    def __init__(self, node: "FakeNode") -> None:
        self.clock = HandClock()
        self.heard_ms: int | None = self.clock.ms
        self.store = ImageStore(node, self.clock)
        # ``ImageStore`` has only the part of a ``MetadataStore`` that access control uses.
        metadata = cast("MetadataStore", self.store)
        rng = random.Random(1)
        self.pool = LoopExecutor()
        self.passwords = Passwords(pool=self.pool, clock=self.clock, random_bytes=rng.randbytes)
        self.callers = Callers(
            metadata=metadata,
            passwords=self.passwords,
            clock=self.clock,
            heard_ms=lambda: self.heard_ms,
            silence_ms_max=SILENCE_MS_MAX,
            has_first_user=False,
            random_bytes=rng.randbytes,
        )
        self.scram_logins = ScramLogins(
            metadata=metadata,
            callers=self.callers,
            wrong=self.passwords.wrong,
            clock=self.clock,
            random_bytes=random.Random(2).randbytes,
        )
        self.service = AccessService(
            metadata=metadata,
            passwords=self.passwords,
            clock=self.clock,
            random_bytes=rng.randbytes,
        )
