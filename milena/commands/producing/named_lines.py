"""Lines of an input with a name: each piece of the input is written in one transaction."""

from collections.abc import Sequence

from milena.producing.deliveries import DeliveriesCallback
from milena.producing.named import NamedProducer


class NamedLines:
    """The producer of a run under a name (``SendPort``). The caller leaves out lines that were written before."""

    def __init__(self, producer: NamedProducer) -> None:
        self._producer = producer

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        on_delivery: DeliveriesCallback | None = None,
    ) -> None:
        """Write these records and the position behind them, all or none; raises as ``NamedProducer.write``."""
        assert topic == self._producer.topic, (topic, self._producer.topic)
        deliveries = await self._producer.write(
            self._producer.position,
            values,
            keys=keys,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        if on_delivery is not None:
            on_delivery(deliveries)

    async def flush(self) -> None:
        """Do nothing: no record is in flight between two calls."""
