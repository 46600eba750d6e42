"""Fetch on any node: from the local replica when it can serve the call, else from one that can.

Any replica serves what lies below its own high watermark (KIP-392). What needs the truth about the log's end, "latest",
out of range, timestamps, is judged by the leader alone. One call crosses the peer port: ``read``.
"""

from collections.abc import Awaitable, Callable, Sequence

from http_api.ports import FetchRequest, FetchResult, PartitionOffsets
from node.metadata import MetadataStore
from node.partition_runner import PartitionRunner
from node.peer import PeerClient
from node.record_batches import check_partition
from node.replicas import LocalReplicas
from raft_meta.machine.image import Topic
from storage.errors import (
    FateUnknownError,
    MalformedRequestError,
    MilenaError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    ReplicaNotFoundError,
    UnavailableError,
)
from storage.files import Buffer

READ = "read"
ANSWER_MARGIN_MS = 2_000
LEADER_WAIT_MS = 300
"""How long a read waits for a replica that is just being made, or is just taking over."""

GetTopic = Callable[[str], Awaitable[Topic]]


class ReadService:
    """The reading half of ``http_api.ports.RecordsPort``."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        replicas: LocalReplicas,
        peer: PeerClient,
        topic_to_read: GetTopic,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        self._has_lease = has_lease
        self._metadata = metadata
        self._replicas = replicas
        self._peer = peer
        self._topic_to_read = topic_to_read

    @property
    def _node_id(self) -> int:
        return self._metadata.node_id

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Read committed records, here when this replica can, else at the leader."""
        topic = await self._topic_to_read(request.topic)
        check_partition(topic, request.partition)
        runner = self._replicas.find(topic.topic_id, request.partition)
        if request.is_local:
            if runner is None:
                raise ReplicaNotFoundError(
                    f"broker {self._node_id} holds no replica of {topic.name}-{request.partition}"
                )
            return await self._fetch_here(runner, request)
        state = self._metadata.image.partition(topic.topic_id, request.partition)
        if state is not None and state.leader == self._node_id:
            runner = await self._replicas.leading(
                topic.topic_id,
                request.partition,
                state.leader_epoch,
                timeout_ms=LEADER_WAIT_MS,
            )
        if runner is not None and self._can_serve(runner, request):
            return await self._fetch_here(runner, request)
        return await self._fetch_there(topic, request)

    def _can_serve(self, runner: PartitionRunner, request: FetchRequest) -> bool:
        """Whether this replica may answer: the leader anything, a follower what it has."""
        if runner.is_damaged:
            return False
        if runner.leader is not None:
            return True
        if request.timestamp_ms is not None or not isinstance(request.offset, int):
            return False
        # Up to our own log end the offset exists, or will; beyond it only the leader may judge.
        return runner.log.log_start_offset <= request.offset <= runner.log.log_end_offset

    async def _fetch_here(self, runner: PartitionRunner, request: FetchRequest) -> FetchResult:
        runner.check_readable()
        offset = self._resolve(runner, request)
        runner.check_offset(offset, has_lease=self._has_lease())
        await runner.wait_committed(offset, request.timeout_ms)
        end = runner.high_watermark
        data = b""
        if offset < end:
            runner.check_offset(offset, has_lease=True)
            data = await runner.read(offset, max_bytes=request.max_bytes, end_offset=end)
            runner.counts.bytes_out += len(data)
        return FetchResult(
            start_offset=offset,
            high_watermark=end,
            log_start_offset=runner.log.log_start_offset,
            leader_epoch=runner.leader_epoch,
            batches=data,
        )

    def _resolve(self, runner: PartitionRunner, request: FetchRequest) -> int:
        """The offset that was meant."""
        if request.timestamp_ms is not None:
            found = runner.log.offset_for_timestamp(request.timestamp_ms)
            return runner.high_watermark if found is None else min(found[0], runner.high_watermark)
        offset = request.offset
        if isinstance(offset, int):
            if offset >= 0:
                return offset
            return max(runner.log.log_start_offset, self._established_end(runner) + offset)
        if offset == "earliest":
            return runner.log.log_start_offset
        if offset == "latest":
            return self._established_end(runner)
        raise MalformedRequestError(f"offset {offset!r}: give a number, earliest or latest")

    def _established_end(self, runner: PartitionRunner) -> int:
        leader = runner.leader
        if leader is not None and not leader.is_established:
            raise NotReadyError(f"{runner.name}: the new leader does not know its log end yet")
        if leader is not None and not self._has_lease():
            raise NotReadyError(
                f"{runner.name}: this leader is cut off, another may have taken over"
            )
        return runner.high_watermark

    async def _fetch_there(self, topic: Topic, request: FetchRequest) -> FetchResult:
        """Ask the leader; for a plain offset any other replica will do when it cannot answer."""
        state = self._metadata.image.partition(topic.topic_id, request.partition)
        if state is None:
            raise NoLeaderError(f"{topic.name}-{request.partition} is not known here yet")
        candidates = [] if state.leader in (None, self._node_id) else [state.leader]
        if isinstance(request.offset, int) and request.offset >= 0:
            candidates += [b for b in state.replicas if b not in (state.leader, self._node_id)]
        last: MilenaError = NoLeaderError(f"{topic.name}-{request.partition} has no leader")
        for broker_id in candidates:
            try:
                epoch = state.leader_epoch if broker_id == state.leader else -1
                return await self._read_at(broker_id, topic, request, epoch)
            except (UnavailableError, FateUnknownError, NotLeaderError) as error:
                last = error
        if isinstance(last, FateUnknownError):
            raise NoLeaderError(f"{topic.name}-{request.partition}: {last.message}") from last
        raise last

    async def _read_at(
        self, broker_id: int, topic: Topic, request: FetchRequest, leader_epoch: int
    ) -> FetchResult:
        answer, body = await self._peer.call(
            broker_id,
            READ,
            {
                "topic": topic.topic_id,
                "partition": request.partition,
                "offset": request.offset,
                "timestamp": request.timestamp_ms,
                "max_bytes": request.max_bytes,
                "timeout_ms": request.timeout_ms,
                "epoch": leader_epoch,
            },
            timeout_ms=request.timeout_ms + ANSWER_MARGIN_MS,
        )
        match answer:
            case {"start": int(start), "hw": int(hw), "log_start": int(log_start), "epoch": int(e)}:
                return FetchResult(
                    start_offset=start,
                    high_watermark=hw,
                    log_start_offset=log_start,
                    leader_epoch=e,
                    batches=body,
                )
            case _:
                raise NoLeaderError(f"node {broker_id} answered a read in the wrong shape")

    async def on_read(
        self, peer_id: int, header: dict[str, object], body: Buffer
    ) -> tuple[dict[str, object], Sequence[Buffer]]:
        """A fetch that another node passes on to this replica."""
        del peer_id, body
        match header:
            case {
                "topic": str(topic_id),
                "partition": int(partition),
                "offset": (int() | str()) as offset,
                "timestamp": (int() | None) as timestamp_ms,
                "max_bytes": int(max_bytes),
                "timeout_ms": int(timeout_ms),
                "epoch": int(leader_epoch),
            }:
                pass
            case _:
                raise MalformedRequestError("read: the request has the wrong shape")
        runner = await self._replicas.leading(
            topic_id, partition, leader_epoch, timeout_ms=LEADER_WAIT_MS
        )
        if runner is None:
            raise NotLeaderError(f"broker {self._node_id} holds no replica of the partition")
        request = FetchRequest(
            topic=runner.topic,
            partition=partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
            max_bytes=max_bytes,
            timeout_ms=timeout_ms,
            is_local=False,
        )
        if not self._can_serve(runner, request):
            raise NotLeaderError(f"broker {self._node_id} does not lead {runner.name}")
        result = await self._fetch_here(runner, request)
        fields: dict[str, object] = {
            "start": result.start_offset,
            "hw": result.high_watermark,
            "log_start": result.log_start_offset,
            "epoch": result.leader_epoch,
        }
        return fields, [result.batches]

    async def offsets(self, topic: str, partition: int) -> PartitionOffsets:
        """The readable range, as the leader knows it."""
        result = await self.fetch(
            FetchRequest(
                topic=topic,
                partition=partition,
                offset="latest",
                timestamp_ms=None,
                max_bytes=1,
                timeout_ms=0,
                is_local=False,
            )
        )
        return PartitionOffsets(
            log_start_offset=result.log_start_offset, high_watermark=result.start_offset
        )
