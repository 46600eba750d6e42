"""The node's hold on the replicated state: the machine behind the quorum, the store that the data loop uses."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable

from http_api.access import on_behalf
from milena.model.errors import FateUnknownError, FeatureLevelError, NoQuorumError
from milena.model.types import WallMs
from node.metadata.image_checks import ImageChecks
from node.process.cluster_clock import NodeClock
from raft_meta.consensus.quorum import Quorum
from raft_meta.machine import codec
from raft_meta.machine.access import audit
from raft_meta.machine.apply import apply
from raft_meta.machine.commands import CheckImage, Command, Envelope
from raft_meta.machine.image import AuditEntry, Image
from raft_meta.machine.marks import Comparison, ImageMarks
from raft_meta.machine.proposers import WINDOW

logger = logging.getLogger(__name__)

ImageListener = Callable[[Image], None]
RETRY_MS = 20
CURRENT_IMAGE_MS = 3_000
"""How long ``current_image`` waits for a majority."""
UNDER_WAY_MAX = WINDOW // 2
"""Proposals at a time: well within what the state machine remembers, so that a retry is always recognised."""


class MetadataMachine:
    """The state machine behind the quorum. Called on the quorum's thread; ``image`` may be read from any thread."""

    def __init__(self) -> None:
        self.image = Image()
        self.marks = ImageMarks()
        self._published = self.image
        self._on_change: Callable[[], None] = lambda: None
        self._compare: Callable[[Comparison], None] = lambda comparison: None
        self._tell: Callable[[AuditEntry], None] = lambda entry: None

    def on_change(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` (on the quorum's thread) after changes of the image: once for those that come together."""
        self._on_change = on_change

    def on_check(self, compare: Callable[[Comparison], None]) -> None:
        """Call ``compare`` (on the quorum's thread) after every check whose mark this node has kept."""
        self._compare = compare

    def on_audited(self, tell: Callable[[AuditEntry], None]) -> None:
        """Call ``tell`` (on the quorum's thread) after every command that changed what is told of."""
        self._tell = tell

    def apply(self, index: int, command: bytes) -> bytes:
        """Apply one committed command."""
        envelope = codec.decode_envelope(command)
        applied = apply(self.image, index, envelope)
        self.image = applied.image
        if isinstance(envelope.command, CheckImage):
            # Whatever became of the command: marks are where the log says, not where this image would have them.
            comparison = self.marks.take(envelope.command, applied.image)
            if comparison is not None:
                self._compare(comparison)
        if applied.change is not None:
            self._tell(applied.change)
        return applied.response

    def publish(self) -> None:
        """Say that there is a new image, if there is one."""
        if self.image is not self._published:
            self._published = self.image
            self._on_change()

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """The image is immutable: a reference is a snapshot."""
        image = self.image
        return lambda: codec.encode_image(image)

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the image."""
        self.image = codec.decode_image(chunks)
        self.marks.forget()


class MetadataStore:
    """The data loop's side: the image, changes of it, proposals and barriers."""

    def __init__(
        self,
        *,
        node_id: int,
        incarnation: int,
        machine: MetadataMachine,
        quorum: Quorum,
        clock: NodeClock,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._on_failure = on_failure
        self.node_id = node_id
        self.incarnation = incarnation
        self.quorum = quorum
        self._machine = machine
        self._clock = clock
        self._sequences = itertools.count(1)
        self._slots = asyncio.Semaphore(UNDER_WAY_MAX)
        self._listeners: list[ImageListener] = []
        self._waiters: dict[asyncio.Future[None], None] = {}
        """Woken in the order in which they came, so that a simulated run repeats."""
        self._seen = machine.image
        self._told = machine.image
        self._is_scheduled = False
        self._barrier: asyncio.Task[Image] | None = None
        self._loop = asyncio.get_running_loop()
        self.checks = ImageChecks(marks=machine.marks, clock=clock, on_failure=on_failure)
        machine.on_change(self._on_applied)
        machine.on_check(self.checks.on_check)

    @property
    def image(self) -> Image:
        """The newest image. Listeners were told of it, or are before the loop has turned once more."""
        return self._seen

    def listen(self, listener: ImageListener) -> None:
        """Call on the data loop with every new image; images in between may be skipped."""
        self._listeners.append(listener)

    def _on_applied(self) -> None:
        # On the quorum's thread. A burst of commits is one callback: the flag is cleared before the image is read.
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver_soon)
            except RuntimeError:
                logger.debug("image changed after the loop was closed")

    def _deliver_soon(self) -> None:
        # Answers came just before this: who waits for one goes on first, and does not wait for what listeners do.
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        image = self._seen = self._machine.image
        if image is self._told:
            return
        self._told = image
        try:
            for listener in self._listeners:
                listener(image)
        except Exception as error:
            # Half of this node would act on the new image, and half on the old one.
            if self._on_failure is not None:
                self._on_failure(error)
            raise
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self, timeout_ms: float) -> bool:
        """Wait for the next image; False when the time was up first."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.pop(waiter, None)
        return True

    async def wait_until(self, condition: Callable[[Image], bool], *, timeout_ms: float) -> bool:
        """Wait until the image fulfils the condition; False when the time was up first."""
        deadline = self._clock.now_ms() + timeout_ms
        while not condition(self.image):
            left = deadline - self._clock.now_ms()
            if left <= 0:
                return False
            await self.changed(left)
        return True

    async def barrier(self, *, timeout_ms: int) -> Image:
        """The image as of a moment after this call.

        Raises:
            NoQuorumError: no majority answered in time.
        """
        index = await self.quorum.barrier(timeout_ms=timeout_ms)
        # The barrier's own entry is not applied to the image, so the image may stay below its index.
        del index
        self._deliver()
        return self.image

    async def current_image(self) -> Image:
        """As ``barrier``, shared. Who asks while one is under way waits for the next one: that one began too early.

        Raises:
            NoQuorumError: no majority answered in time.
        """
        if self._barrier is not None and not self._barrier.done():
            await asyncio.wait([self._barrier])
        if self._barrier is None or self._barrier.done():
            self._barrier = asyncio.create_task(self.barrier(timeout_ms=CURRENT_IMAGE_MS))
            # Callers that went away leave a failed barrier to nobody.
            self._barrier.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._barrier)

    def outlive_past_incarnations(self) -> None:
        """Take an incarnation above its own, and above every one that the image knows of this node.

        What was proposed before is refused once anything has been applied that is proposed from now on.
        """
        known = self._machine.image.proposers.get(self.node_id)
        past = self.incarnation if known is None else max(self.incarnation, known.incarnation)
        self.incarnation = past + 1
        self._sequences = itertools.count(1)

    async def propose(
        self, command: Command, *, timeout_ms: int, is_answer_first: bool = False
    ) -> object:
        """Commit a command and return its response, once this node's image includes it.

        An answer that got lost is asked for again under the same sequence, which is applied only once. Listeners know
        the image, too; with ``is_answer_first`` they are told after the caller's next step, since what they do
        would take as long as a tenth of the commit.

        Raises:
            NoQuorumError: it was certainly not applied.
            FateUnknownError: nobody could tell in time.
            FeatureLevelError: a node may be of a release that does not know the command, and would stop at it.
            MilenaError: what the state machine refused it with.
        """
        self._check_level(command)
        deadline = self._clock.now_ms() + timeout_ms
        await self._take_slot(timeout_ms)
        try:
            response = await self._propose(command, max(1, int(deadline - self._clock.now_ms())))
        finally:
            self._slots.release()
        if is_answer_first:
            self._seen = self._machine.image
        else:
            self._deliver()
        return codec.decode_response(response)

    async def _take_slot(self, timeout_ms: int) -> None:
        if not self._slots.locked():
            # Does not wait, and so needs no timer: a tenth of what a proposal costs this loop.
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._slots.acquire()
        except TimeoutError:
            raise NoQuorumError(
                f"{UNDER_WAY_MAX} changes of the metadata wait for an answer; this one was not sent"
            ) from None

    def _check_level(self, command: Command) -> None:
        level, present = codec.LEVELS[type(command)], self.image.feature_level
        if level > present:
            raise FeatureLevelError(
                f"this needs feature level {level}, and the cluster is at {present}, to which it rises by itself once "
                "every node is of a release that supports it; nothing was changed"
            )

    def _principal(self, command: Command) -> str:
        """Who is to be told of; nodes of the release before would stop at an envelope that says it."""
        is_told = type(command) in audit.TOLD and self.image.feature_level >= audit.LEVEL
        return on_behalf.principal.get() if is_told else ""

    def _command_ms(self) -> WallMs:
        """The time of a command. A clock that nobody has judged yet must not move the applied time."""
        return self._clock.expiry_ms() or self._machine.image.now_ms or self._clock.wall_ms()

    async def _propose(self, command: Command, timeout_ms: int) -> bytes:
        envelope = Envelope(
            proposer=self.node_id,
            incarnation=self.incarnation,
            sequence=next(self._sequences),
            now_ms=self._command_ms(),
            command=command,
            principal=self._principal(command),
        )
        encoded = codec.encode_envelope(envelope)
        deadline = self._clock.now_ms() + timeout_ms
        unknown: FateUnknownError | None = None
        while True:
            left = int(deadline - self._clock.now_ms())
            try:
                return await self.quorum.propose(encoded, timeout_ms=max(1, left))
            except FateUnknownError as error:
                unknown = error
                if deadline - self._clock.now_ms() <= RETRY_MS:
                    raise
                await self._clock.sleep(RETRY_MS)
                continue
            except NoQuorumError:
                # This try was not applied, but an earlier one may have been.
                if unknown is not None:
                    raise unknown from None
                raise
