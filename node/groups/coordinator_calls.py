"""Calls from any node to a group's coordinator, on any node.

A service of the coordinator registers its handlers once, by ``serve``. A caller on any node awaits ``call``:

    calls.serve(COMMIT, self._on_commit)                  # async (GroupCommitRequest) -> Done
    await calls.call(
        COMMIT, GroupCommitRequest(group_id=group_id, ...), repeat=Repeat.ELSEWHERE
    )

``call`` finds the coordinator in the local image. If that is this node, the request goes directly to the handler. If
not, request and response are packed and travel over the peer port.

A handler runs only on the group's coordinator, while that has a live lease. Elsewhere the call fails with
NotCoordinatorError before the handler is entered. A handler may raise that error itself as long as it has done nothing.

A node may be the last to learn that another one coordinates the group: its image does not have what its successor has
answered. So the refusal of a handler is valid only once the quorum has confirmed the coordinator (``judged``).

After NotCoordinatorError, or if the coordinator cannot be reached or there is none, ``call`` waits for the image to
change and retries. It does so for at most ``COORDINATOR_WAIT_MS`` beyond ``wait_ms``. ``Repeat`` decides about retries
of a call that may have been carried out.

The request's ``wait_ms`` is how long the coordinator may hold back its response. Retries ask for what is left of it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum, unique
from typing import TypeAlias, TypeVar, cast

from msgspec import structs

from http_api.ports.groups import Heartbeat
from milena.model.errors import (
    DrainingError,
    FateUnknownError,
    FeatureLevelError,
    InvalidRequestError,
    MemberIdRequiredError,
    MilenaError,
    NotCoordinatorError,
    NotReadyError,
    RebalanceInProgressError,
)
from node.config.budgets import COORDINATOR_ANSWER_MS, COORDINATOR_WAIT_MS, RETRY_MS
from node.context import NodeContext
from node.groups.group_messages import GroupRequest
from node.peers.messages import AnswerT, CallType, ask, peer_handler
from node.peers.port import Handler, PeerUnreachableError
from raft_meta.machine.groups.coordinators import coordinator_of
from raft_meta.machine.image import Image

GroupRequestT = TypeVar("GroupRequestT", bound=GroupRequest | Heartbeat)

_Handler: TypeAlias = Callable[[GroupRequest | Heartbeat], Awaitable[object]]

_NO_JUDGEMENT = (FateUnknownError, RebalanceInProgressError, MemberIdRequiredError)
"""Errors that say nothing final about the group: its client repeats the request, or joins with the id that it got."""

_NOTHING_DONE = (NotCoordinatorError, PeerUnreachableError, NotReadyError, DrainingError)


@unique
class Repeat(StrEnum):
    """When a call whose response was lost may be repeated."""

    NEVER = "never"
    """Never: the result is unknown, and reported as unknown."""
    ELSEWHERE = "elsewhere"
    """Once the group has another coordinator; for calls that may be carried out twice but not late.

    By then, the proposals of the former coordinator are applied, or refused forever. So nothing of the lost call
    happens after the repeated one.
    """
    ALWAYS = "always"
    """At any time; for calls that do no harm if they are carried out several times, or late."""


class CoordinatorCalls:
    """Calls to groups' coordinators, and the coordinator's own handlers. Owned by the data loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._handlers: dict[str, _Handler] = {}
        self._peer_handlers: dict[str, Handler] = {}

    # -- on the coordinator ----------------------------------------------------------------------

    def serve(
        self,
        call: CallType[GroupRequestT, AnswerT],
        handler: Callable[[GroupRequestT], Awaitable[AnswerT]],
    ) -> None:
        """Register the handler of a type of call, for the groups that this node coordinates. One handler a type."""
        assert call.name not in self._handlers, f"two handlers for {call.name}"

        async def checked(request: GroupRequestT) -> AnswerT:
            async with self.judged(request.group_id):
                return await handler(request)

        # Requests of this name always have this type: local ones by ``call``, those of other nodes by its decoder.
        self._handlers[call.name] = cast("_Handler", checked)
        self._peer_handlers[call.name] = peer_handler(call, checked)

    @property
    def peer_handlers(self) -> Mapping[str, Handler]:
        """The handlers for the peer port, by type of request."""
        return self._peer_handlers

    def coordinates(self, group_id: str, image: Image | None = None) -> bool:
        """Return whether this node coordinates the group, by ``image`` (None: the newest), and has a lease."""
        image = self._node.metadata.image if image is None else image
        node_id = self._node.metadata.node_id
        broker = image.brokers.get(node_id)
        return (
            broker is not None
            and broker.broker_epoch == self._node.membership.broker_epoch
            and coordinator_of(image, group_id) == node_id
            and self._node.membership.has_lease
        )

    def check(self, group_id: str) -> None:
        """Refuse a call for a group that this node does not coordinate now.

        Raises:
            NotCoordinatorError: this node does not coordinate the group; nothing was done.
        """
        if not self.coordinates(group_id):
            raise NotCoordinatorError(
                f"broker {self._node.metadata.node_id} does not coordinate group {group_id!r} now; try again"
            )

    @asynccontextmanager
    async def judged(self, group_id: str) -> AsyncIterator[None]:
        """Run a block as the coordinator of a group. What it refuses counts only if no other node has coordinated it.

        Raises:
            NotCoordinatorError: this node does not coordinate the group, or another one may have since this node's
                image; nothing was done.
            NoQuorumError: the block refused the request, and no majority could be asked; nothing was done.
        """
        self.check(group_id)
        version = self._node.metadata.image.coordinators_version
        try:
            yield
        except MilenaError as error:
            if not error.is_retriable and not isinstance(error, _NO_JUDGEMENT):
                await self.confirm(group_id, version)
            raise

    async def confirm(self, group_id: str, version: int) -> None:
        """Make sure that no other node has coordinated the group since the image of this ``coordinators_version``.

        Raises:
            NotCoordinatorError: another one may have.
            NoQuorumError: no majority could be asked.
        """
        image = await self._node.metadata.current_image()
        self.check(group_id)
        if image.coordinators_version != version:
            raise NotCoordinatorError(
                f"another node may have coordinated group {group_id!r} meanwhile; nothing was done, try again"
            )

    # -- on any node -----------------------------------------------------------------------------

    async def call(
        self,
        call: CallType[GroupRequestT, AnswerT],
        request: GroupRequestT,
        *,
        repeat: Repeat,
        answer_ms: int = COORDINATOR_ANSWER_MS,
    ) -> AnswerT:
        """Have the group's coordinator carry out a call, and return its response.

        Args:
            call: a type of call that was registered by ``serve``.
            request: names the group, and how long the response may be held back (``wait_ms``).
            repeat: when to repeat a call whose response was lost.
            answer_ms: how long the response may take, besides ``wait_ms``.

        Raises:
            NotCoordinatorError: no coordinator of the group was found; nothing was done.
            FateUnknownError: the call may have been carried out, or may still be.
            FeatureLevelError: the coordinator has a release without this call; nothing was done.
            MilenaError: the error of the handler.
        """
        started = self._node.clock.now_ms()
        group_id, wait_ms = request.group_id, request.wait_ms
        patience = started + wait_ms + COORDINATOR_WAIT_MS
        unknown: FateUnknownError | None = None
        while True:
            wait_left = max(0, wait_ms - (self._node.clock.now_ms() - started))
            if wait_left != request.wait_ms:
                request = structs.replace(request, wait_ms=wait_left)
            asked = self._coordinator(group_id)
            try:
                return await self._try(asked, call, request, wait_left + answer_ms)
            except FateUnknownError as error:
                unknown = error
                if self._node.clock.now_ms() >= patience:
                    raise
                await self._until_repeatable(repeat, group_id, asked, error)
            except _NOTHING_DONE as error:
                if self._node.clock.now_ms() >= patience:
                    raise unknown or _as_not_coordinator(error) from error
            except MilenaError as error:
                if unknown is None:
                    raise
                raise FateUnknownError(f"{unknown.message}; then: {error.message}") from error
            await self._node.metadata.changed(RETRY_MS)

    def _coordinator(self, group_id: str) -> tuple[int, int] | None:
        """Return the coordinator's broker id and broker epoch."""
        image = self._node.metadata.image
        broker_id = coordinator_of(image, group_id)
        return None if broker_id is None else (broker_id, image.brokers[broker_id].broker_epoch)

    async def _until_repeatable(
        self,
        repeat: Repeat,
        group_id: str,
        asked: tuple[int, int] | None,
        unknown: FateUnknownError,
    ) -> None:
        """Return once the call may be repeated, or raise ``unknown``."""
        if repeat is Repeat.ALWAYS:
            return

        def has_moved(image: Image) -> bool:
            del image
            return self._coordinator(group_id) != asked

        if repeat is Repeat.NEVER or not await self._node.metadata.wait_until(
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
        if broker_id == self._node.metadata.node_id:
            return await self._here(call, request, timeout_ms)
        try:
            return await ask(self._node.peers, broker_id, call, request, timeout_ms=timeout_ms)
        except InvalidRequestError as error:
            if type(error) is not InvalidRequestError:
                raise
            # A node answers with exactly this class if it does not know the type of request.
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
    """Return NotCoordinatorError in place of an unreachable coordinator: to a client that is the same."""
    if isinstance(error, PeerUnreachableError):
        return NotCoordinatorError(f"the group's coordinator: {error.message}; nothing was done")
    return error
