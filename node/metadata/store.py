"""A node's access to the replicated state: the state machine behind the quorum, and the store for the data loop."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable

from http_api.access import on_behalf
from milena.model.errors import FateUnknownError, FeatureLevelError, NoQuorumError
from milena.model.types import WallMs
from node.config.budgets import BARRIER_MS, SHORT_RETRY_MS
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
UNDER_WAY_MAX = WINDOW // 2
"""Largest number of proposals in flight. The state machine remembers twice as many, so it recognises every retry."""


class MetadataMachine:
    """The state machine behind the quorum. Called on the quorum's thread; any thread may read ``image``."""

    def __init__(self) -> None:
        self.image = Image()
        self.marks = ImageMarks()
        self._published = self.image
        self._on_change: Callable[[], None] = lambda: None
        self._compare: Callable[[Comparison], None] = lambda comparison: None
        self._tell: Callable[[AuditEntry], None] = lambda entry: None
        self._untold: list[AuditEntry] = []
        """Audit entries since the last ``publish``."""

    def on_change(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` on the quorum's thread when the image has changed, once for several changes together."""
        self._on_change = on_change

    def on_check(self, compare: Callable[[Comparison], None]) -> None:
        """Call ``compare`` on the quorum's thread for every check whose mark this node has kept."""
        self._compare = compare

    def on_audited(self, tell: Callable[[AuditEntry], None]) -> None:
        """Call ``tell`` on the quorum's thread with the audit entry of each applied command that has one.

        It is called after the command's response was delivered, because writing a line may take a tenth of a commit. If
        the process dies in between, it applies the command again at its next start, and ``tell`` is called then.
        """
        self._tell = tell

    def apply(self, index: int, command: bytes) -> bytes:
        """Apply one committed command; return its encoded response."""
        envelope = codec.decode_envelope(command)
        applied = apply(self.image, index, envelope)
        self.image = applied.image
        if isinstance(envelope.command, CheckImage):
            # Keep the mark even if the command was refused: the marks must be the same on all nodes.
            comparison = self.marks.take(envelope.command, applied.image)
            if comparison is not None:
                self._compare(comparison)
        if applied.change is not None:
            self._untold.append(applied.change)
        return applied.response

    def publish(self) -> None:
        """Call ``on_change`` if there is a new image, and pass on the audit entries since the last call."""
        if self.image is not self._published:
            self._published = self.image
            self._on_change()
        if self._untold:
            untold, self._untold = self._untold, []
            for entry in untold:
                self._tell(entry)

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Return a function that packs the present image. The image is immutable, so a reference to it suffices."""
        image = self.image
        return lambda: codec.encode_image(image)

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the image by that of a snapshot."""
        self.image = codec.decode_image(chunks)
        self.marks.forget()


class MetadataStore:
    """The replicated state for the data loop: the image, its changes, proposals and barriers."""

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
        self._changed = asyncio.Event()
        """Wakes the tasks that wait for the next image, in order of arrival. It is set only for a moment."""
        self._seen = machine.image
        self._told = machine.image
        self._is_scheduled = False
        self._barrier: asyncio.Task[Image] | None = None
        self._has_caught_up = False
        """Whether the image has all that was committed before this process started."""
        self._loop = asyncio.get_running_loop()
        self.checks = ImageChecks(marks=machine.marks, clock=clock, on_failure=on_failure)
        machine.on_change(self._on_applied)
        machine.on_check(self.checks.on_check)

    @property
    def image(self) -> Image:
        """The newest image. Its listeners have been called, or will be called in the loop's next turn."""
        return self._seen

    def listen(self, listener: ImageListener) -> None:
        """Call ``listener`` on the data loop with each new image. If images follow quickly, some are skipped."""
        self._listeners.append(listener)

    def _on_applied(self) -> None:
        # On the quorum's thread. Many commits cause one callback, because ``_deliver`` clears the flag before it reads
        # the image.
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver_soon)
            except RuntimeError:
                logger.debug("image changed after the loop was closed")

    def _deliver_soon(self) -> None:
        # The quorum has just delivered responses. In this order their callers resume before the listeners are called.
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
            # A part of this node now uses the new image and another part the old one, so the node must stop.
            if self._on_failure is not None:
                self._on_failure(error)
            raise
        self._changed.set()
        self._changed.clear()

    async def changed(self, timeout_ms: float) -> bool:
        """Wait for the next image; return False if the timeout passes first."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def wait_until(self, condition: Callable[[Image], bool], *, timeout_ms: float) -> bool:
        """Wait until the image fulfils the condition; return False if the timeout passes first."""
        deadline = self._clock.now_ms() + timeout_ms
        while not condition(self.image):
            left = deadline - self._clock.now_ms()
            if left <= 0:
                return False
            await self.changed(left)
        return True

    async def barrier(self, *, timeout_ms: int) -> Image:
        """Return an image with every command that was committed before this call.

        Raises:
            NoQuorumError: no majority responded in time.
        """
        await self.quorum.barrier(timeout_ms=timeout_ms)
        self._has_caught_up = True
        self._deliver()
        return self.image

    async def current_image(self) -> Image:
        """Return an image as ``barrier`` does. Several callers share a barrier.

        A caller that arrives during a barrier waits for the next one: the running one may have started too early.

        Raises:
            NoQuorumError: no majority responded in time.
        """
        if self._barrier is not None and not self._barrier.done():
            await asyncio.wait([self._barrier])
        if self._barrier is None or self._barrier.done():
            self._barrier = asyncio.create_task(self.barrier(timeout_ms=BARRIER_MS))
            # If all callers are gone, read the error here: otherwise asyncio logs it as never retrieved.
            self._barrier.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._barrier)

    async def catch_up(self) -> None:
        """Return once the image has all that was committed before this process started.

        A node that starts has an older image, or an empty one. A response from it could say that a topic, a user or a
        feature does not exist.

        Raises:
            NoQuorumError: no majority responded in time.
        """
        if not self._has_caught_up:
            await self.current_image()

    def outlive_past_incarnations(self) -> None:
        """Take a higher incarnation than the present one, and than every one of this node in the image.

        Once a command with the new incarnation is applied, all earlier proposals of this node are refused.
        """
        known = self._machine.image.proposers.get(self.node_id)
        past = self.incarnation if known is None else max(self.incarnation, known.incarnation)
        self.incarnation = past + 1
        self._sequences = itertools.count(1)

    async def propose(
        self, command: Command, *, timeout_ms: int, is_answer_first: bool = False
    ) -> object:
        """Commit a command and return its response, when this node's image includes the command.

        If a response is lost, the command is proposed again with the same sequence number, so it is applied only once.
        When this returns, the listeners have been called with the image. With ``is_answer_first``, they are called
        after the caller's next step, because their work may take a tenth of the time of a commit.

        Raises:
            NoQuorumError: the command was not applied and will not be.
            FateUnknownError: it did not become known in time whether the command was applied.
            FeatureLevelError: some node may run a release that does not know the command, and would stop at it.
            MilenaError: the state machine refused the command with this error.
        """
        if codec.LEVELS[type(command)] > self.image.feature_level:
            # Another node may have seen the level rise a moment ago.
            await self.current_image()
            self._check_level(command)
        deadline = self._clock.now_ms() + timeout_ms
        await self._take_slot(timeout_ms)
        try:
            response = await self._propose(command, max(1, int(deadline - self._clock.now_ms())))
        finally:
            self._slots.release()
        self._has_caught_up = True
        if is_answer_first:
            self._seen = self._machine.image
        else:
            self._deliver()
        return codec.decode_response(response)

    async def _take_slot(self, timeout_ms: int) -> None:
        if not self._slots.locked():
            # Without a wait there is no need for a timer. A timer is a tenth of a proposal's cost on this loop.
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
        """Return the principal for the envelope of an audited command; empty for other commands.

        Also empty below ``audit.LEVEL``: nodes of an older release would stop at an envelope with a principal.
        """
        is_told = type(command) in audit.TOLD and self.image.feature_level >= audit.LEVEL
        return on_behalf.principal.get() if is_told else ""

    def _command_ms(self) -> WallMs:
        """Return the time of a command: the cluster's time, else the applied time, else this node's clock."""
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
                if deadline - self._clock.now_ms() <= SHORT_RETRY_MS:
                    raise
                await self._clock.sleep(SHORT_RETRY_MS)
                continue
            except NoQuorumError:
                # This attempt was not applied, but an earlier one may have been.
                if unknown is not None:
                    raise unknown from None
                raise
