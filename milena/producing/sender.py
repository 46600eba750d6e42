"""Send the shipments of each partition to its log, one at a time, and find out their results (asyncio shell).

The life of a shipment:

1. It gets a stamp (producer id, epoch, first sequence) and is encoded, once.
2. It goes to the partition's leader, or to any node while the leader is unknown. One attempt is in flight at a time.
3. ``milena.producing.retry`` judges a failure:
   *Retry*: wait, then send the same bytes.
   *Split*: two halves replace the shipment.
   *Renew*: log and producer disagree on the sequence, and it is certain that nothing was written. The shipment gets a
   new producer id, numbered from 0.
   *Fail*: give up.
4. At its deadline, the shipment is given up. If all attempts are known to have written nothing, the next shipment gets
   its sequence. If the result of an attempt is unknown, its records fail with ``UnknownResultError``, and the lane
   continues under a new producer id. Under the old id, no next sequence would be safe: if the batch was written, the
   same sequence would count as a retry of it; if not, the following one would leave a gap.

A leader that hangs would block its lane until the request times out. So while an idempotent shipment waits for its
response, the sender refreshes the metadata every ``STALL_MS``. If the partition has another leader, the sender stops
waiting and sends the batch to it. The new leader's log recognises the batch if it was written already.
"""

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import Protocol

from milena.cluster.metadata import MetadataCache
from milena.cluster.transport import AppendAnswer
from milena.errors import (
    AnswerError,
    BadRecordError,
    ClientClosedError,
    ClientError,
    ConditionFailedError,
    DeliveryTimeoutError,
    NotPermittedError,
    ProducerFencedError,
    RecordTooLargeError,
    TooLargeError,
    UnexpectedAnswerError,
    UnknownResultError,
    is_worth_another_try,
)
from milena.model.batch.encode import encode_batch
from milena.model.clock import Clock
from milena.model.errors import InvalidRecordError
from milena.model.types import Codec
from milena.producing.batching import Lane, Shipment
from milena.producing.options import ProducerOptions
from milena.producing.retry import Backoff, Step, judge
from milena.records import Acks, ProducerIdentity

logger = logging.getLogger(__name__)

STALL_MS = 1_000
"""Interval in which the sender checks, during an append, whether the partition has another leader, in ms."""

ENCODE_ON_LOOP_BYTES_MAX = 32 << 10
"""Batches above this size are compressed on another thread, because that takes milliseconds."""

ANSWER_MARGIN_MS = 250
"""The node gets a timeout that ends this many ms before the deadline, so that its response arrives in time."""


class ProducerCallsPort(Protocol):
    """Calls of ``milena.cluster.transport`` that a producer needs."""

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: Acks,
        timeout_ms: int,
        if_match: int | None,
    ) -> AppendAnswer:
        """Make one attempt to append."""

    async def allocate_producer(self, name: str | None = None) -> ProducerIdentity:
        """Return a new producer id."""

    async def can_make_topic(self, topic: str) -> bool:
        """Let nodes create a missing topic, if their settings allow that; return whether the topic exists."""


class ShipmentPort(Protocol):
    """The object to which the sender reports the results of shipments: the producer."""

    def settle(
        self, shipment: Shipment, *, base_offset: int | None, error: ClientError | None
    ) -> None:
        """Give all records of the shipment this outcome."""

    def put_back(self, lane: Lane, shipments: Sequence[Shipment]) -> None:
        """Send these shipments next; they replace one that the sender was given."""


class Sender:
    """Sends the shipments of all lanes. Owned by one event loop; each lane has at most one ``deliver`` in progress."""

    def __init__(
        self,
        options: ProducerOptions,
        *,
        transport: ProducerCallsPort,
        leaders: MetadataCache,
        shipments: ShipmentPort,
        clock: Clock,
        chance: Random,
    ) -> None:
        self._options = options
        self._transport = transport
        self._leaders = leaders
        self._shipments = shipments
        self._clock = clock
        self._chance = chance
        self._backoff = Backoff(
            first_ms=options.retry_backoff_ms, most_ms=options.retry_backoff_max_ms
        )
        self._identity: ProducerIdentity | None = None
        self._allocating: asyncio.Task[ProducerIdentity] | None = None
        self.fenced: ProducerFencedError | None = None
        """The error if another producer has taken over the producer id; once set, nothing more is written."""

    async def deliver(self, lane: Lane, shipment: Shipment) -> None:
        """Send a shipment until its outcome is known or its deadline has passed, and report the outcome.

        The only error that this raises is ``CancelledError``.
        """
        try:
            await self._deliver(lane, shipment)
        except ClientError as error:
            self._give_up(lane, shipment, error)
        except asyncio.CancelledError:
            self._give_up(
                lane, shipment, ClientClosedError("the producer was closed before it was written")
            )
            raise
        except Exception as error:
            # After a bug too, the records need an outcome, and the lane must continue.
            logger.exception("send failed topic=%s partition=%d", lane.topic, lane.partition)
            shipment.may_be_written = shipment.may_be_written or shipment.encoded is not None
            self._give_up(lane, shipment, UnexpectedAnswerError(f"the client failed: {error!r}"))

    async def _deliver(self, lane: Lane, shipment: Shipment) -> None:
        failures = 0
        while True:
            try:
                await self._stamp(lane, shipment)
                answer = await self._attempt(lane, shipment)
            except ClientError as error:
                failures += 1
                if self._is_replaced(lane, shipment, error):
                    return
                await self._wait(shipment, failures, error)
            else:
                self._shipments.settle(shipment, base_offset=answer.base_offset, error=None)
                return

    def _is_replaced(self, lane: Lane, shipment: Shipment, error: ClientError) -> bool:
        """Split or renew the shipment after a failed attempt, if that helps; return whether halves replace it.

        Raises:
            ClientError: the shipment has failed, and is not sent again.
        """
        if shipment.encoded is None:
            # Nothing was sent: the request for a producer id failed.
            if not is_worth_another_try(error):
                raise error
            return False
        judgement = judge(
            error,
            is_idempotent=self._options.is_sequenced,
            may_be_written=shipment.may_be_written,
            record_count=shipment.record_count,
        )
        if not judgement.is_fate_known:
            shipment.may_be_written = True
        elif _rules_out(error, shipment):
            shipment.may_be_written = False
        match judgement.step:
            case Step.RETRY:
                self._leaders.mark_stale(lane.topic)
            case Step.SPLIT:
                self._take_back(lane, shipment)
                self._shipments.put_back(lane, shipment.halves())
                return True
            case Step.RENEW:
                lane.sequence.spoil()
                shipment.encoded = shipment.stamp = None
            case Step.FAIL:
                if isinstance(error, ProducerFencedError):
                    self.fenced = error
                raise error
        return False

    async def _wait(self, shipment: Shipment, failures: int, error: ClientError) -> None:
        """Wait before the next attempt.

        Raises:
            DeliveryTimeoutError: there is no time for another attempt.
        """
        wait_ms = self._backoff.wait_ms(failures, self._chance)
        if self._clock.now_ms() + wait_ms >= shipment.deadline_ms:
            raise DeliveryTimeoutError(
                f"not written within {self._options.delivery_timeout_ms:g} ms: {error.message}"
            ) from error
        await self._clock.sleep(wait_ms)

    # -- one attempt -------------------------------------------------------------------------------

    async def _stamp(self, lane: Lane, shipment: Shipment) -> None:
        """Give the shipment its stamp and encode it, unless an earlier attempt did."""
        if shipment.encoded is not None:
            return
        if self.fenced is not None:
            raise self.fenced
        if self._options.is_sequenced:
            if lane.sequence.identity is None:
                lane.sequence.begin(await self._identity_for(lane, shipment))
            shipment.stamp = lane.sequence.take(shipment.record_count)
        try:
            shipment.encoded = await self._encode(shipment)
        except InvalidRecordError as error:
            raise BadRecordError(error.message) from error

    async def _encode(self, shipment: Shipment) -> bytes:
        codec = self._options.codec
        is_heavy = codec is not Codec.NONE and shipment.batch.size_bytes > ENCODE_ON_LOOP_BYTES_MAX
        return (
            await asyncio.to_thread(_encode, shipment, codec)
            if is_heavy
            else _encode(shipment, codec)
        )

    async def _attempt(self, lane: Lane, shipment: Shipment) -> AppendAnswer:
        assert shipment.encoded is not None
        left_ms = shipment.deadline_ms - self._clock.now_ms()
        if left_ms <= 0:
            raise DeliveryTimeoutError(
                f"not sent within {self._options.delivery_timeout_ms:g} ms: others waited before it"
            )
        timeout_ms = min(self._options.request_timeout_ms, max(1.0, left_ms - ANSWER_MARGIN_MS))
        append = self._transport.append(
            lane.topic,
            lane.partition,
            shipment.encoded,
            acks=self._options.acks,
            timeout_ms=max(1, int(timeout_ms)),
            if_match=shipment.batch.if_match,
        )
        was_sure = not shipment.may_be_written
        # Until a response arrives, the batch may be written. Set this before the wait, so that it also holds after a
        # cancellation.
        shipment.may_be_written = True
        task = asyncio.ensure_future(append)
        try:
            answer = await self._watch(lane, task)
        except ClientError:
            shipment.may_be_written = not was_sure
            raise
        finally:
            await _end(task)
        return _checked(answer, shipment, self._options.acks)

    async def _watch(self, lane: Lane, task: "asyncio.Future[AppendAnswer]") -> AppendAnswer:
        """Return the response; stop waiting for it if the partition gets another leader first."""
        if not self._options.is_sequenced:
            return await task
        epoch = self._leaders.leader_epoch(lane.topic, lane.partition)
        while True:
            done, _ = await asyncio.wait({task}, timeout=STALL_MS / 1000)
            if not done:
                look = asyncio.ensure_future(self._look_after_leader())
                both: set[asyncio.Future[AppendAnswer] | asyncio.Future[None]] = {task, look}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                await _end(look)
            if task.done():
                return task.result()
            later = self._leaders.leader_epoch(lane.topic, lane.partition)
            if epoch is None:
                epoch = later
            elif later is not None and later != epoch:
                raise UnknownResultError(
                    f"{lane.topic}-{lane.partition} has another leader, and the former did not answer",
                    status=504,
                )

    async def _look_after_leader(self) -> None:
        try:
            await self._leaders.refresh()
        except ClientError as error:
            logger.debug("metadata not renewed: %s", error)

    # -- identities --------------------------------------------------------------------------------

    async def _identity_but(self, spoiled: ProducerIdentity | None) -> ProducerIdentity:
        """Return the producer's identity. If it equals ``spoiled``, get a new one, which all lanes then use."""
        if self._identity is None or self._identity == spoiled:
            if self._allocating is None or self._allocating.done():
                self._allocating = asyncio.create_task(self._transport.allocate_producer())
            # Several lanes may wait for this request. Without the shield, cancelling one would cancel it for all.
            self._identity = await asyncio.shield(self._allocating)
        return self._identity

    async def _identity_for(self, lane: Lane, shipment: Shipment) -> ProducerIdentity:
        left_ms = shipment.deadline_ms - self._clock.now_ms()
        limit = asyncio.timeout(max(0.0, left_ms) / 1000)
        try:
            async with limit:
                return await self._identity_but(lane.sequence.spoiled)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeliveryTimeoutError(
                f"not written within {self._options.delivery_timeout_ms:g} ms: no node gave a producer id"
            ) from error
        except NotPermittedError as error:
            # The node's error is about a producer id and names no topic. Add the topic of these records.
            told = f"{error.message}; nothing was written to {lane.topic}"
            raise error.reworded(told) from error

    async def close(self) -> None:
        """Cancel a request for an id that no lane waits for any more."""
        task, self._allocating = self._allocating, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                # Read the exception, so that asyncio does not report it as never retrieved.
                task.exception()

    # -- outcomes ----------------------------------------------------------------------------------

    def _take_back(self, lane: Lane, shipment: Shipment) -> None:
        """Give the unused sequence of a shipment to the next shipment."""
        if shipment.stamp is not None:
            lane.sequence.take_back(shipment.stamp)

    def _give_up(self, lane: Lane, shipment: Shipment, error: ClientError) -> None:
        if not shipment.may_be_written:
            self._take_back(lane, shipment)
            self._shipments.settle(shipment, base_offset=None, error=_named(error, lane))
            return
        lane.sequence.spoil()
        status = error.status if isinstance(error, AnswerError) else 504
        unknown = UnknownResultError(
            f"not known whether {shipment.record_count} records were written to "
            f"{lane.topic}-{lane.partition}: {error.message}",
            status=status,
            error_code=error.error_code if isinstance(error, AnswerError) else None,
        )
        unknown.__cause__ = error
        self._shipments.settle(shipment, base_offset=None, error=unknown)


async def _end(task: "asyncio.Future[AppendAnswer] | asyncio.Future[None]") -> None:
    """Cancel the task, if it still runs, and wait for its end."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


def _rules_out(error: ClientError, shipment: Shipment) -> bool:
    """Return whether a failed ``if_match`` proves that no attempt has written the shipment or ever will.

    A log that had the batch would recognise its sequence. The log that refuses the batch does not know the sequence,
    and its committed end lies above ``if_match``. So another batch has that offset, and late attempts are refused too.
    """
    if not isinstance(error, ConditionFailedError) or shipment.stamp is None:
        return False
    if_match, end_offset = shipment.batch.if_match, error.end_offset
    return if_match is not None and end_offset is not None and if_match < end_offset


def _encode(shipment: Shipment, codec: Codec) -> bytes:
    columns, base_timestamp_ms = shipment.batch.columns(shipment.start, shipment.stop)
    return encode_batch(
        columns, base_timestamp_ms=base_timestamp_ms, codec=codec, producer=shipment.stamp
    )


def _checked(answer: AppendAnswer, shipment: Shipment, acks: Acks) -> AppendAnswer:
    """Return the response if its offsets fit the number of records; otherwise raise ``UnexpectedAnswerError``."""
    base, last = answer.base_offset, answer.last_offset
    if base is None and last is None and acks == 0:
        return answer
    if base is not None and last is not None and 0 <= base == last - shipment.record_count + 1:
        return answer
    raise UnexpectedAnswerError(
        f"a node says that {shipment.record_count} records are at offsets {base} to {last}"
    )


def _named(error: ClientError, lane: Lane) -> ClientError:
    """Return the error as ``Producer`` documents it."""
    if isinstance(error, TooLargeError):
        named = RecordTooLargeError(f"{lane.topic}-{lane.partition}: {error.message}")
        named.__cause__ = error
        return named
    return error
