"""Deletes records, on any node. The leader responds once every replica that may lead next has deleted them.

This node sends ``delete_records`` to the leader. The call names an offset, so it may be repeated safely. If the leader
changes meanwhile, the next leader gets the call. If ``before`` is None, each leader determines the offset by itself.
"""

from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    InvalidRequestError,
    MilenaError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
)
from node.config.budgets import (
    RETRY_MS,
    TAKEOVER_WAIT_MS,
    WRITE_ANSWER_MARGIN_MS,
    WRITE_LEADER_WAIT_MS,
)
from node.context import NodeContext
from node.metadata.lookup import GetTopic, check_partition
from node.peers.messages import ask, peer_handler
from node.peers.port import PeerUnreachableError
from node.services.in_time import in_time, nothing
from node.services.in_time import unknown as unknown_error
from node.services.log_ends import LogEnds, MovedError
from node.services.messages import DELETE_RECORDS, DeleteRecordsAnswer, DeleteRecordsRequest
from raft_meta.machine.image import Topic


class DeletionService:
    """Implements ``http_api.ports.node.DeletionsPort``."""

    def __init__(self, node: NodeContext, *, topic_to_read: GetTopic) -> None:
        self._node = node
        self._topic_to_read = topic_to_read
        self._ends = LogEnds(node.metadata)
        self.on_delete_records = peer_handler(DELETE_RECORDS, self._delete_here)
        """Handles a deletion that another node passes to this node, as the partition's leader."""

    async def delete_records(
        self, topic_name: str, partition: int, before: int | None, *, timeout_ms: int
    ) -> int:
        """Delete the records below ``before`` (None: all committed records); return the first offset that remains.

        Raises:
            FateUnknownError: the records may be deleted, now or later.
            MilenaError of another kind: nothing was deleted.
        """
        now_ms = self._node.clock.now_ms()
        async with in_time(timeout_ms, nothing("deleted")):
            topic = await self._topic_to_read(topic_name, partition)
        check_partition(topic, partition)
        deadline, patience = now_ms + timeout_ms, now_ms + min(timeout_ms, WRITE_LEADER_WAIT_MS)
        unknown: FateUnknownError | None = None
        while True:
            left_ms = max(1, deadline - self._node.clock.now_ms())
            try:
                # Before a leader refuses an offset above its end, it asks the quorum. Allow time for that.
                late = left_ms + WRITE_ANSWER_MARGIN_MS
                async with in_time(late, unknown_error("some of the records may be deleted")):
                    return await self._delete_once(topic, partition, before, left_ms)
            except FateUnknownError as error:
                unknown = error
            except (NotLeaderError, NoLeaderError, NotReadyError, PeerUnreachableError) as error:
                if unknown is None and self._node.clock.now_ms() >= patience:
                    raise _as_no_leader(error) from error
            except MilenaError as error:
                if unknown is None:
                    raise
                raise FateUnknownError(
                    f"{unknown.message}; then: {error.message}. Some of the records may be deleted"
                ) from error
            if unknown is not None and self._node.clock.now_ms() >= deadline:
                raise unknown
            await self._node.clock.sleep(RETRY_MS)

    async def _delete_once(
        self, topic: Topic, partition: int, before: int | None, timeout_ms: float
    ) -> int:
        state = self._node.metadata.image.partition(topic.topic_id, partition)
        if state is None or state.leader is None:
            raise NoLeaderError(f"{topic.name}-{partition} has no leader; nothing was deleted")
        request = DeleteRecordsRequest(
            topic_id=topic.topic_id,
            partition=partition,
            before=before,
            leader_epoch=state.leader_epoch,
            timeout_ms=int(timeout_ms),
        )
        if state.leader == self._node.metadata.node_id:
            return (await self._delete_here(request)).log_start_offset
        try:
            answer = await ask(
                self._node.peers,
                state.leader,
                DELETE_RECORDS,
                request,
                timeout_ms=timeout_ms + WRITE_ANSWER_MARGIN_MS,
            )
        except InvalidRequestError as error:
            if type(error) is InvalidRequestError:
                # A node that does not know the call responds with exactly this class, not with a subclass.
                raise FeatureLevelError(
                    f"node {state.leader}, which leads {topic.name}-{partition}, is of a release that cannot delete "
                    "records; upgrade it first. Nothing was deleted"
                ) from error
            raise
        return answer.log_start_offset

    async def _delete_here(self, request: DeleteRecordsRequest) -> DeleteRecordsAnswer:
        runner = await self._node.replicas.leading(
            request.topic_id,
            request.partition,
            request.leader_epoch,
            timeout_ms=min(request.timeout_ms, TAKEOVER_WAIT_MS),
        )
        if runner is None:
            raise NotLeaderError(
                f"node {self._node.metadata.node_id} holds no replica of the partition"
            )
        leads_since = runner.leader_epoch
        try:
            start = await runner.delete_records(
                request.before,
                has_lease=self._node.membership.has_lease,
                timeout_ms=request.timeout_ms,
            )
        except OffsetOutOfRangeError:
            try:
                await self._ends.confirm(runner, leads_since)
            except MovedError as moved:
                raise NotLeaderError(moved.message) from None
            raise
        return DeleteRecordsAnswer(log_start_offset=start)


def _as_no_leader(error: MilenaError) -> MilenaError:
    """Return the error that clients get: if the leader cannot be reached, "no leader"."""
    if isinstance(error, PeerUnreachableError):
        return NoLeaderError(error.message)
    return error
