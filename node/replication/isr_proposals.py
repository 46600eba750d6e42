"""Sends the leaders' ISR proposals to the quorum. One command carries those of many partitions."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from milena.model.clock import Clock
from milena.model.errors import FateUnknownError, MilenaError
from node.config.budgets import SHORT_RETRY_MS
from node.control.standing import Standing
from node.metadata.store import MetadataStore
from node.replica.leader import IsrProposal
from node.replica.runner import PartitionRunner
from raft_meta.machine.commands import AlterIsr, IsrChange, IsrMember

logger = logging.getLogger(__name__)

CHANGES_MAX = 1_000
"""Largest number of changes in a command. A thousand take about 100 KB, well below the quorum's limit of 1 MiB."""


Proposal = tuple[PartitionRunner, IsrProposal]


@dataclass(eq=False, kw_only=True)
class IsrProposer:
    """Sends queued proposals, one command at a time."""

    metadata: MetadataStore
    clock: Clock
    standing: Standing
    timeout_ms: int

    def __post_init__(self) -> None:
        self._queue: list[Proposal] = []
        self._work = asyncio.Event()

    def submit(self, runner: PartitionRunner, proposal: IsrProposal) -> None:
        """Queue a proposal. Its outcome is reported to ``runner.on_proposal_done``."""
        self._queue.append((runner, proposal))
        self._work.set()

    async def run(self) -> None:
        """Send queued proposals; run until cancelled."""
        while True:
            await self._work.wait()
            batch, self._queue = self._queue[:CHANGES_MAX], self._queue[CHANGES_MAX:]
            if not self._queue:
                self._work.clear()
            if batch and not await self._send(batch):
                await self.clock.sleep(SHORT_RETRY_MS)

    async def _send(self, batch: Sequence[Proposal]) -> bool:
        command = AlterIsr(
            broker_id=self.metadata.node_id,
            broker_epoch=self.standing.broker_epoch,
            changes=tuple(_change(runner, proposal) for runner, proposal in batch),
        )
        try:
            answer = await self.metadata.propose(command, timeout_ms=self.timeout_ms)
            assert isinstance(answer, tuple | list), answer
            assert len(answer) == len(batch), (len(answer), len(batch))
        except FateUnknownError as error:
            logger.info("isr proposal unknown: %s", error)
            self._finish(batch, [False] * len(batch))
            return False
        except MilenaError as error:
            logger.info("isr proposal refused: %s", error)
            self._finish(batch, [True] * len(batch))
            return False
        except Exception:
            # The caller of ``run`` reports this error and starts ``run`` again. Before that, report an unknown fate, so
            # that no leader waits for a response that never arrives.
            self._finish(batch, [False] * len(batch))
            raise
        for (runner, proposal), code in zip(batch, answer, strict=True):
            if code:
                logger.info(
                    "isr proposal refused partition=%s leader_epoch=%d code=%s",
                    runner.name,
                    proposal.leader_epoch,
                    code,
                )
        refused = [bool(code) for code in answer]
        self._finish(batch, refused)
        return not any(refused)

    @staticmethod
    def _finish(batch: Sequence[Proposal], refused: Sequence[bool]) -> None:
        for (runner, proposal), is_refused in zip(batch, refused, strict=True):
            runner.on_proposal_done(proposal, is_definite_refusal=is_refused)


def _change(runner: PartitionRunner, proposal: IsrProposal) -> IsrChange:
    return IsrChange(
        topic_id=runner.topic_id,
        partition=runner.partition,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        isr=tuple(IsrMember(broker_id=b, broker_epoch=e) for b, e in proposal.members),
    )
