"""Calls from any node to a group's coordinator, wherever that is now.

A service of the coordinator tells its handlers once, by ``serve``; whoever wants it done awaits ``call``, on any node:

    calls.serve(COMMIT, self._on_commit)                  # async (GroupCommitRequest) -> Done
    await calls.call(
        COMMIT, GroupCommitRequest(group_id=group_id, ...), repeat=Repeat.ELSEWHERE
    )

``call`` finds the coordinator in the local image. Where that is this node, the request goes straight to the handler and
the answer straight back; else both are packed and travel over the peer port. A handler runs only on the group's
coordinator while that has a live lease: elsewhere the answer is NotCoordinatorError, before the handler is entered; a
handler may raise it as well as long as it has done nothing. Then, and when the coordinator cannot be reached or there
is none, ``call`` waits for the image to change and tries again, for at most ``COORDINATOR_WAIT_MS``. ``Repeat`` says
what becomes of a call that may have been carried out.

The request's ``wait_ms`` is how long the coordinator may hold back its answer; later tries ask for less, by what the
earlier ones have used up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum, unique
from typing import TypeAlias, TypeVar, cast

from msgspec import structs

from milena.model.clock import Clock
from milena.model.errors import (
    DrainingError,
    FateUnknownError,
    FeatureLevelError,
    InvalidRequestError,
    MilenaError,
    NotCoordinatorError,
    NotReadyError,
)
from node.control.standing import Standing
from node.groups.group_messages import GroupRequest
from node.metadata.store import MetadataStore
from node.peers.messages import AnswerT, CallType, Message, ask, peer_handler
from node.peers.port import Handler, Peers, PeerUnreachableError
from raft_meta.machine.groups.coordinators import coordinator_of
from raft_meta.machine.image import Image

COORDINATOR_WAIT_MS = 5_000
"""A call waits this long for somebody who coordinates the group: a broker is fenced within about two seconds, and its
successor knows it as soon as it has applied that."""
RETRY_MS = 50
"""Between two tries, unless the image changes before."""
ANSWER_MS = 8_000
"""For the answer, beside the wait that the caller asks for: longer than the coordinator waits for the quorum."""

GroupRequestT = TypeVar("GroupRequestT", bound=GroupRequest)

_Handler: TypeAlias = Callable[[GroupRequest], Awaitable[Message]]

_NOTHING_DONE = (NotCoordinatorError, PeerUnreachableError, NotReadyError, DrainingError)


@unique
class Repeat(StrEnum):
    """When a call whose answer was lost may be made again."""

    NEVER = "never"
    """The result is unknown, and said to be."""
    ELSEWHERE = "elsewhere"
    """Once the group has another coordinator. What the former one proposed has been applied before that, or is refused
    for ever, so nothing of the lost call comes after the repeated one: for what may be done twice but not late."""
    ALWAYS = "always"
    """For what does no harm, however often and late it is done."""


class CoordinatorCalls:
    """Calls to groups' coordinators, and the coordinator's own handlers. Owned by the data loop."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        peer: Peers,
        clock: Clock,
        standing: Standing,
    ) -> None:
        self._metadata = metadata
        self._peer = peer
        self._clock = clock
        self._standing = standing
        self._handlers: dict[str, _Handler] = {}
        self._peer_handlers: dict[str, Handler] = {}

    # -- on the coordinator ----------------------------------------------------------------------

    def serve(
        self,
        call: CallType[GroupRequestT, AnswerT],
        handler: Callable[[GroupRequestT], Awaitable[AnswerT]],
    ) -> None:
        """Do this for the groups that this node coordinates; each type of call has one handler."""
        assert call.name not in self._handlers, f"two handlers for {call.name}"

        async def checked(request: GroupRequestT) -> AnswerT:
            self.check(request.group_id)
            return await handler(request)

        # Of this name only requests of this type arrive: from here by ``call``, from elsewhere by its decoder.
        self._handlers[call.name] = cast("_Handler", checked)
        self._peer_handlers[call.name] = peer_handler(call, checked)

    @property
    def peer_handlers(self) -> Mapping[str, Handler]:
        """The handlers, as the peer port calls them, by types of requests."""
        return self._peer_handlers

    def coordinates(self, group_id: str, image: Image | None = None) -> bool:
        """Whether this node may decide for the group, as far as it can know; by this image or the newest."""
        image = self._metadata.image if image is None else image
        node_id = self._metadata.node_id
        broker = image.brokers.get(node_id)
        return (
            broker is not None
            and broker.broker_epoch == self._standing.broker_epoch
            and coordinator_of(image, group_id) == node_id
            and self._standing.has_lease
        )

    def check(self, group_id: str) -> None:
        """Refuse what another node is to decide.

        Raises:
            NotCoordinatorError: nothing was done.
        """
        if not self.coordinates(group_id):
            raise NotCoordinatorError(
                f"broker {self._metadata.node_id} does not coordinate group {group_id!r} now; try again"
            )

    # -- on any node -----------------------------------------------------------------------------

    async def call(
        self,
        call: CallType[GroupRequestT, AnswerT],
        request: GroupRequestT,
        *,
        repeat: Repeat,
        answer_ms: int = ANSWER_MS,
    ) -> AnswerT:
        """Have the group's coordinator do this.

        Args:
            call: what ``serve`` was told.
            request: of which group, what, and how long the answer may be held back.
            repeat: what becomes of a call whose answer was lost.
            answer_ms: how long the answer may take besides.

        Raises:
            NotCoordinatorError: nobody could be found who coordinates the group; nothing was done.
            FateUnknownError: it may have been done, or may yet be.
            FeatureLevelError: the coordinator is of a release that cannot do this; nothing was done.
            MilenaError: what the handler raised.
        """
        started = self._clock.now_ms()
        group_id, wait_ms = request.group_id, request.wait_ms
        patience = started + wait_ms + COORDINATOR_WAIT_MS
        unknown: FateUnknownError | None = None
        while True:
            wait_left = max(0, wait_ms - (self._clock.now_ms() - started))
            if wait_left != request.wait_ms:
                request = structs.replace(request, wait_ms=wait_left)
            asked = self._coordinator(group_id)
            try:
                return await self._try(asked, call, request, wait_left + answer_ms)
            except FateUnknownError as error:
                unknown = error
                if self._clock.now_ms() >= patience:
                    raise
                await self._until_repeatable(repeat, group_id, asked, error)
            except _NOTHING_DONE as error:
                if self._clock.now_ms() >= patience:
                    raise unknown or _as_not_coordinator(error) from error
            except MilenaError as error:
                if unknown is None:
                    raise
                raise FateUnknownError(f"{unknown.message}; then: {error.message}") from error
            await self._metadata.changed(RETRY_MS)

    def _coordinator(self, group_id: str) -> tuple[int, int] | None:
        """Its broker id and broker epoch."""
        image = self._metadata.image
        broker_id = coordinator_of(image, group_id)
        return None if broker_id is None else (broker_id, image.brokers[broker_id].broker_epoch)

    async def _until_repeatable(
        self,
        repeat: Repeat,
        group_id: str,
        asked: tuple[int, int] | None,
        unknown: FateUnknownError,
    ) -> None:
        """Return when the call may be made again, or raise that its result is unknown."""
        if repeat is Repeat.ALWAYS:
            return

        def has_moved(image: Image) -> bool:
            del image
            return self._coordinator(group_id) != asked

        if repeat is Repeat.NEVER or not await self._metadata.wait_until(
            has_moved, timeout_ms=COORDINATOR_WAIT_MS
        ):
            raise unknown

    async def _try(
        self,
        coordinator: tuple[int, int] | None,
        call: CallType[GroupRequestT, AnswerT],
        request: GroupRequestT,
        timeout_ms: float,
    ) -> AnswerT:
        if coordinator is None:
            raise NotCoordinatorError(
                f"no broker is there to coordinate group {request.group_id!r}; nothing was done"
            )
        broker_id, _ = coordinator
        if broker_id == self._metadata.node_id:
            return await self._here(call, request, timeout_ms)
        try:
            return await ask(self._peer, broker_id, call, request, timeout_ms=timeout_ms)
        except InvalidRequestError as error:
            if type(error) is not InvalidRequestError:
                raise
            # The word for a request that a node does not know.
            raise FeatureLevelError(
                f"broker {broker_id}, which coordinates group {request.group_id!r}, is of a release that cannot do "
                "this; upgrade it first. Nothing was done"
            ) from error

    async def _here(
        self, call: CallType[GroupRequestT, AnswerT], request: GroupRequestT, timeout_ms: float
    ) -> AnswerT:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return cast("AnswerT", await self._handlers[call.name](request))
        except TimeoutError as error:
            raise FateUnknownError(f"{call.name}: no answer within {timeout_ms:.0f} ms") from error


def _as_not_coordinator(error: MilenaError) -> MilenaError:
    """To a client a coordinator that cannot be reached is none."""
    if isinstance(error, PeerUnreachableError):
        return NotCoordinatorError(f"the group's coordinator: {error.message}; nothing was done")
    return error
