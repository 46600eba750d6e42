"""Read pages, and note each page or failed read as an event; identify the records."""

import asyncio
import time
import zlib

from tests.chaos.adapter import Adapter, ApiError, Key, Value
from tests.chaos.cluster import Node
from tests.chaos.history import FinalRead, History, Phase, Read, ReadFailed, View
from tests.chaos.setup import Setup

READ_WAIT_MS = 200
FINAL_WAIT_MS = 100
PAGE_BYTES = 1 << 20
RETRY_AFTER_S = 0.1


def make_value(record: str, padding_bytes: int) -> dict[str, str]:
    """Return the value of a record: its name, and padding that depends only on the name."""
    return {"id": record, "pad": f"{zlib.crc32(record.encode()):08x}" * (padding_bytes // 8)}


def identify(key: Key, value: Value) -> str:
    """Return the name of a record that was read, or a description of its damage."""
    match value:
        case {"id": str(record), "pad": str(padding)}:
            if value == make_value(record, len(padding)) and key == record.split(":")[0]:
                return record
        case _:
            pass
    return f"!damaged {str(value)[:40]}"


class PageReader:
    """Reads pages of a run's topics."""

    def __init__(self, setup: Setup, adapter: Adapter, history: History) -> None:
        self._setup = setup
        self._adapter = adapter
        self._history = history

    async def poll(
        self,
        reader: str,
        node: Node,
        view: View,
        partition: int,
        position: int,
        phase: Phase = Phase.RUN,
    ) -> int | None:
        """Read one page; return the next offset, or None if there was no page."""
        page = await self.read(reader, node, view, partition, position, phase)
        if page is None:
            return None
        return max(position, page.records[-1][0] + 1) if page.records else position

    async def read(
        self,
        reader: str,
        node: Node,
        view: View,
        partition: int,
        position: int,
        phase: Phase = Phase.RUN,
    ) -> Read | None:
        """Return one page, or None if there was none. In the final phase the page is from the node's own replica."""
        is_final = phase is Phase.FINAL
        wait_ms = FINAL_WAIT_MS if is_final else READ_WAIT_MS
        topic, number = self._setup.located(view, partition)
        try:
            found = await self._adapter.fetch(
                node.url,
                topic,
                number,
                position,
                wait_ms=wait_ms,
                max_bytes=PAGE_BYTES,
                timeout_s=self._setup.workload.read_timeout_s + wait_ms / 1000,
                is_local=is_final,
                is_uncommitted=view is View.UNCOMMITTED,
            )
        except ApiError as error:
            self._history.add(
                ReadFailed(
                    at_s=self._history.now_s(),
                    reader=reader,
                    partition=partition,
                    node=node.node_id,
                    error=str(error)[:80],
                    view=view,
                )
            )
            return None
        page = Read(
            at_s=self._history.now_s(),
            reader=reader,
            partition=partition,
            node=node.node_id,
            from_offset=position,
            records=tuple((offset, identify(key, value)) for offset, key, value in found),
            phase=phase,
            view=view,
        )
        if page.records:
            self._history.add(page)
        return page

    async def read_all(
        self, node: Node, view: View, partition: int, marker: int, deadline_s: float
    ) -> None:
        """Read a node's own replica from its start to past the record at ``marker``. ``deadline_s`` is monotonic."""
        position = 0
        reader = f"final{node.node_id}"
        while position <= marker and time.monotonic() < deadline_s:
            following = await self.poll(reader, node, view, partition, position, Phase.FINAL)
            if following is None or following == position:
                await asyncio.sleep(RETRY_AFTER_S)
            position = position if following is None else following
        self._history.add(
            FinalRead(
                at_s=self._history.now_s(),
                partition=partition,
                node=node.node_id,
                is_complete=position > marker,
                end_offset=position,
                view=view,
            )
        )
