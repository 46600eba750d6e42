"""Move a stream from batch to batch: decide where each batch ends, and when there is one (asyncio)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from milena.fields import Json
from milena.model.clock import Clock
from milena.reading.patience import Patience
from spark_ext.errors import DataLossError, OffsetError
from spark_ext.options.parsing import StreamOptions
from spark_ext.options.selection import missing_of, selects
from spark_ext.reading.planner import PlannedRange, resolve, time_queries
from spark_ext.reading.range_fetch import CATCH_UP_MS
from spark_ext.streaming.offsets import (
    StreamOffset,
    TaskHints,
    ends_json,
    hints_of,
    offset_after,
    offset_json,
    parse_offset,
)
from spark_ext.streaming.plan import Resumption, Sighting, admit, offsets_within, resume
from spark_ext.streaming.watch import StreamWatch

POLL_MS = 1_000
"""How long one call may wait for new records, in ms. Spark calls again at once, and does nothing else meanwhile."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The bounds of a batch; None means no bound. A batch below ``offsets_min`` waits for more records."""

    offsets_max: int | None = None
    offsets_min: int | None = None
    bytes_max: int | None = None
    """Approximate bytes of the records as they are stored."""


class StreamProgress:
    """One run of a stream.

    ``latest`` is called for each batch, with the offset at which the previous one ended. After ``pin`` the ends of the
    partitions are fixed, and no call waits for new records.
    """

    def __init__(self, options: StreamOptions, watch: StreamWatch, clock: Clock) -> None:
        self._options = options
        self._watch = watch
        self._clock = clock
        self._pinned: Sighting | None = None
        self._seen: Sighting | None = None
        self._batch_ms: float | None = None
        self._told: frozenset[str] = frozenset()
        """Losses that were logged; they are certain and are not checked again."""

    @property
    def is_pinned(self) -> bool:
        """Return whether the stream ends at the ends that ``pin`` saw."""
        return self._pinned is not None

    async def pin(self) -> None:
        """Fix the end of the stream at the current ends of its partitions."""
        self._pinned = await self._watch.look()

    def report(self) -> dict[str, Json] | None:
        """Return the last seen ends of the partitions; None before the first look."""
        if self._seen is None:
            return None
        return ends_json({p: ends.high_watermark for p, ends in self._seen.ends.items()})

    async def latest(self, start: Mapping[str, Json], admission: Admission) -> dict[str, Json]:
        """Return the end of the batch that starts at ``start``. If there are no new records yet, return ``start``.

        Raises:
            OffsetError: ``start`` is not an offset of this stream, or it is above the end of a partition.
            DataLossError: records from ``start`` on were deleted before the stream read them.
            ClientError: the cluster does not respond.
        """
        parsed = parse_offset(start)
        if parsed is None:
            admitted = await self._admitted(await self._begin(), admission)
            end = offset_after(None, admitted, self._hints)
        else:
            end = await self._next(parsed, admission)
        if end is None:
            return dict(start)
        self._batch_ms = self._clock.now_ms()
        return offset_json(end)

    async def _admitted(
        self, ranges: Sequence[PlannedRange], admission: Admission
    ) -> Sequence[PlannedRange]:
        offsets_max = admission.offsets_max
        if admission.bytes_max is not None:
            full = [r for r in ranges if r.record_count]
            sizes = await self._watch.record_bytes([(r.partition, r.start) for r in full])
            within = offsets_within(full, sizes, admission.bytes_max)
            offsets_max = within if offsets_max is None else min(offsets_max, within)
        return admit(ranges, offsets_max)

    # -- batch 0 -----------------------------------------------------------------------------------

    async def _begin(self) -> Sequence[PlannedRange]:
        options = self._options.read
        seen = await self._look()
        if missing := missing_of(options.selection, seen.ends):
            raise OffsetError(missing[0])
        queries = sorted(time_queries((options.start,), sorted(seen.ends)))
        found = await self._watch.offsets_at(queries)
        if queries and self._pinned is None:
            # Look up times before ends, so that no found offset lies beyond an end.
            later = (await self._look()).ends
            seen = replace(seen, ends={p: later.get(p, ends) for p, ends in seen.ends.items()})
        ranges, losses = resolve(
            options, seen.ends, seen.topic_ids, dict(zip(queries, found, strict=True))
        )
        self._tell(losses)
        return ranges

    # -- later batches -----------------------------------------------------------------------------

    async def _next(self, start: StreamOffset, admission: Admission) -> StreamOffset | None:
        end_ms = self._clock.now_ms() + POLL_MS
        while True:
            ranges = await self._resume(start)
            rest_ms = self._rest_ms(ranges, admission)
            if rest_ms <= 0:
                admitted = await self._admitted(ranges, admission)
                if (end := offset_after(start, admitted, self._hints)) is not None:
                    return end
            left_ms = end_ms - self._clock.now_ms()
            if self.is_pinned or left_ms <= 0:
                return None
            if rest_ms > 0:
                # Do not watch: every new record would end the wait, although the batch is still too small.
                await self._clock.sleep(min(rest_ms, left_ms))
            else:
                await self._watch.wait(left_ms)

    def _rest_ms(self, ranges: Sequence[PlannedRange], admission: Admission) -> float:
        """Return how long a batch must still wait for more records, in ms; the first batch of a run never waits."""
        if self._batch_ms is None or self.is_pinned or admission.offsets_min is None:
            return 0
        if sum(r.record_count for r in ranges) >= admission.offsets_min:
            return 0
        return self._batch_ms + self._options.trigger_delay_ms_max - self._clock.now_ms()

    async def _resume(self, start: StreamOffset) -> Sequence[PlannedRange]:
        selection = self._options.read.selection
        known = {p.topic for p in start.ends if selects(selection, p)}
        patience = Patience(CATCH_UP_MS)
        while True:
            found = resume(start, await self._look(sorted(known)), selection)
            wait_ms = patience.on_failure(self._clock.now_ms())
            if self._is_certain(found) or wait_ms is None:
                self._tell((*found.losses, *found.doubts))
                return found.ranges
            self._watch.mark_stale()
            await self._clock.sleep(wait_ms)
            if self.is_pinned:
                await self.pin()

    def _is_certain(self, found: Resumption) -> bool:
        return self._told.issuperset(found.doubts)

    async def _look(self, known: Sequence[str] = ()) -> Sighting:
        self._seen = self._pinned or await self._watch.look(known)
        return self._seen

    def _tell(self, losses: Sequence[str]) -> None:
        """Log each loss once; raise DataLossError instead if the query fails on data loss."""
        if losses and self._options.read.fetching.fail_on_data_loss:
            raise DataLossError(losses[0])
        for loss in losses:
            if loss not in self._told:
                logger.warning("%s; what there is is read", loss)
        self._told = frozenset(losses)

    @property
    def _hints(self) -> TaskHints:
        return hints_of(self._options.read)
