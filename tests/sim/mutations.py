"""Guards of the production code, taken out one by one: does the simulation notice?

    python -m tests.sim.mutations                    every guard; writes the table to tests/sim/mutations.md
    python -m tests.sim.mutations --only lease,crc   some of them; writes their rows, and keeps the others
    python -m tests.sim.mutations --one lease        this process runs without the guard: for a look at a failure

A mutation is a piece of source text of a module and what stands there instead. It is made while the module is
imported, in a process of its own; no file is touched. A text that is not there exactly once is an error, so that the
table cannot outlive the code. Tests of guards against the Raft library do the same within their process
(``imported_anew``).

A guard that random faults cannot miss, since another one stands behind it, has a directed test instead: the same
mutation, and the test must fail.
"""

import argparse
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("mutations.md")
ROOT = Path(__file__).parents[2]
SEEDS_MAX = 400
SECONDS_MAX = 3_600.0
"""Real ones, for one guard: the bound that counts is that of seeds, which means the same on a busy machine."""
SIMULATIONS = frozenset({"cluster", "raft"})
FOUND = 1
"""Exit code of a simulation that found something, and of pytest when a test failed."""


Cut = tuple[str, str, str]
"""(module, old, new)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One guard. ``old`` → ``new`` in the source of ``module``; ``more``: likewise, where it stands in several places.

    ``by``: one of ``SIMULATIONS``, which must notice, or the test that must fail. ``options``: of the simulation, say
    kinds of faults that make the guard matter, so that fewer seeds do.
    """

    name: str
    guard: str
    module: str
    old: str
    new: str
    by: str = "cluster"
    options: tuple[str, ...] = ()
    more: tuple[Cut, ...] = ()

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """All of it."""
        return ((self.module, self.old, self.new), *self.more)


def _raft(
    name: str, guard: str, *cuts: Cut, by: str = "", options: tuple[str, ...] = ()
) -> Mutation:
    """A guard against a fault of the library: ``raft_meta.consensus.guards`` lists them.

    Where nothing else is named, it is judged by its scenario in ``tests.support.clusters.guard_scenarios``.
    """
    first, *more = ((f"raft_meta.consensus.{module}", old, new) for module, old, new in cuts)
    return Mutation(
        name=f"raft-{name}",
        guard=guard,
        module=first[0],
        old=first[1],
        new=first[2],
        more=tuple(more),
        by=by or f"{CONSENSUS_TESTS}/test_guards.py::test_scenario_goes_well[raft-{name}]",
        options=options,
    )


CONSENSUS_TESTS = "tests/unit/raft_meta/consensus"
_ACKNOWLEDGED = (
    "            self._acknowledge(node_id, reset=False, next_index=None, success=True)\n"
)
CALLERS = "node.access.callers"
GUARDED = ("--parts", "guarded")
CONDITIONAL = ("--parts", "conditional")
TRANSACTIONAL = ("--parts", "transactional")
SERVICES_TESTS = "tests/unit/node/services"
LEADER = "node.replica.leader"
MARKERS = "node.replication.transaction_markers"
PARTITIONS = "raft_meta.machine.partitions"
RUNNER = "node.replica.runner"
SERVICE = "node.services.transactions"
TRANSACTIONS = "raft_meta.machine.transactions"
UPKEEP = "node.replica.log_upkeep"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="fetch-leader-epoch",
        guard="a fetch counts only under the current leader epoch",
        module=LEADER,
        old="if leader_epoch != self.leader_epoch:",
        new="if False:",
        by="tests/unit/node/replica/test_leader.py",
    ),
    Mutation(
        name="fetch-broker-epoch",
        guard="a fetch acknowledges only under the follower's live broker epoch",
        module=LEADER,
        old="if broker is None or broker.broker_epoch != broker_epoch:\n            return FetchVerdict",
        new="if broker is None:\n            return FetchVerdict",
        by="tests/unit/node/replica/test_leader.py",
    ),
    Mutation(
        name="fetch-divergence",
        guard="a fetch whose (offset, last epoch) is not on the leader's log is told where to cut",
        module=LEADER,
        old="if epoch != last_epoch or offset > end:",
        new="if offset > self.log_end:",
    ),
    Mutation(
        name="sync-before-ack",
        guard="the log is synced before the stored end moves",
        module="storage.log.tickets",
        old="            file.sync()\n        if self._directory is not None:",
        new="            pass\n        if self._directory is not None:",
        options=("--faults", "cut_power,cut_all_power"),
    ),
    Mutation(
        name="stored-end",
        guard="a strict topic's stored end is the synced end",
        module="storage.log.partition_log",
        old="return self._flushing.synced_end if self._config.is_strict else self._state.end_offset",
        new="return self._state.end_offset",
        options=("--faults", "cut_power,cut_all_power,slow_disk"),
    ),
    Mutation(
        name="failed-sync",
        guard="a failed sync stops the process",
        module="node.replica.group_commit",
        old="            self._on_fatal(error)\n            return\n        self._log.finish_sync(ticket)",
        new="            pass\n        self._log.finish_sync(ticket)",
        options=("--faults", "fail_sync,cut_power,cut_all_power"),
    ),
    Mutation(
        name="isr-union",
        guard="the high watermark counts every outstanding ISR proposal",
        module=LEADER,
        old="return self.isr.union(*(p.broker_ids for p in self.outstanding))",
        new="return self.isr",
    ),
    Mutation(
        name="isr-in-watermark",
        guard="the high watermark waits for every member of the ISR",
        module=LEADER,
        old="reached = min(reached, progress.stored_end)",
        new="pass",
    ),
    Mutation(
        name="min-insync-commit",
        guard="nothing is committed while the ISR is below min.insync.replicas",
        module=LEADER,
        old="        if not self.has_enough_in_sync:\n            return False",
        new="",
        options=("--faults", "kill,cut_power,stop"),
    ),
    Mutation(
        name="min-insync-append",
        guard="acks=all is refused before the append while the ISR is too small",
        module=RUNNER,
        old="if acks is Acks.ALL and not self.leader.has_enough_in_sync:",
        new="if False:",
        options=("--faults", "kill,cut_power,stop"),
    ),
    Mutation(
        name="watermark-monotonic",
        guard="the high watermark never falls within an epoch",
        module=LEADER,
        old="if reached <= self.high_watermark:",
        new="if reached == self.high_watermark:",
        by="tests/unit/node/replica/test_leader.py",
    ),
    Mutation(
        name="join-caught-up",
        guard="who joins the ISR has caught up to the high watermark and the epoch's start",
        module=LEADER,
        old="and progress.stored_end >= max(self.high_watermark, self.epoch_start_offset)",
        new="",
    ),
    Mutation(
        name="established",
        guard="a new leader judges what is out of range only once its high watermark is re-established",
        module=RUNNER,
        old="            if not leader.is_established:",
        new="            if False:",
        by="tests/unit/node/replica/test_runner.py",
    ),
    Mutation(
        name="dedup-sequences",
        guard="an idempotent producer's sequence is written once",
        module="node.replica.append_queue",
        old="verdict = self._log.producer_check(header, now_ms)",
        new="return None",
    ),
    Mutation(
        name="dedup-keys",
        guard="an idempotency key is applied once",
        module="node.replica.append_queue",
        old="entry = self._log.idempotency_lookup(key.key_hash, now_ms)",
        new="entry = None",
    ),
    Mutation(
        name="condition-after-repeats",
        guard="a repeat is recognised before its condition is judged",
        module="node.replica.append_queue",
        old="receipt = self._find_duplicate(append.header)",
        new="receipt = self._find_duplicate(append.header) if append.expected_end is None else None",
        options=CONDITIONAL,
    ),
    Mutation(
        name="condition-in-turn",
        guard="a condition is judged once what comes before it in its turn is written",
        module="node.replica.append_queue",
        old="if group and (is_repeat or append.expected_end is not None):",
        new="if group and is_repeat:",
        options=CONDITIONAL,
    ),
    Mutation(
        name="condition-committed",
        guard="a refusal tells an end that is committed",
        module="node.replica.acknowledgements",
        old="if reached >= end:\n            writer.set_exception(refusal)",
        new="if True:\n            writer.set_exception(refusal)",
        options=CONDITIONAL,
    ),
    Mutation(
        name="condition-confirmed",
        guard="a refusal for where the log ends is told only after the quorum has confirmed who leads",
        module="node.services.to_leader",
        old="await self._ends.confirm(runner, leader_epoch)",
        new="pass",
        by="tests/unit/node/services/test_conditional_writes.py",
    ),
    Mutation(
        name="condition-apart",
        guard="a write under a condition shares no batch with those of other requests",
        module="node.services.produce",
        old="if request.idempotency is not None or request.expected_end is not None:",
        new="if request.idempotency is not None:",
        options=CONDITIONAL,
    ),
    Mutation(
        name="condition-whole",
        guard="records under a condition are one batch",
        module="node.services.encoding",
        old="is_whole = count == 1 or key is not None or is_conditional",
        new="is_whole = count == 1 or key is not None",
        by="tests/unit/node/services/test_conditional_writes.py",
    ),
    Mutation(
        name="condition-forwarded",
        guard="a write that is passed on to the leader takes its condition along",
        module="node.services.to_leader",
        old="if expected_end is None:\n            answer, _",
        new="if True:\n            answer, _",
        options=CONDITIONAL,
    ),
    Mutation(
        name="condition-own-call",
        guard="a condition travels in a call that earlier releases refuse",
        module="node.services.messages",
        old='CallType("produce_if"',
        new='CallType("produce"',
        by="tests/unit/node/services/test_conditional_writes.py",
    ),
    Mutation(
        name="end-epoch",
        guard="the end of a transaction counts under its producer's present epoch only",
        module=TRANSACTIONS,
        old="if producer.producer_epoch != end.producer_epoch:",
        new="if False:",
        by="tests/scripts",
    ),
    Mutation(
        name="end-taken-over",
        guard="who was taken over is not told that the epoch that follows is his",
        module=TRANSACTIONS,
        old="    if not producer.last:",
        new="    if False:",
        by="tests/scripts",
    ),
    Mutation(
        name="end-offsets",
        guard="a commit moves offsets that its member may commit, or is an abort",
        module=TRANSACTIONS,
        old="            offsets.check_commit(self._before, commit)",
        new="            pass",
        by="tests/scripts",
    ),
    Mutation(
        name="key-of-before",
        guard="a key is sought where its records went before the topic grew",
        module="node.services.produce",
        old="        await self._lookup.check_key(topic, request)\n",
        new="",
        options=("--parts", "rehashed"),
    ),
    Mutation(
        name="end-before-append",
        guard="a transaction that is over takes nothing, also where it has written nothing",
        module="node.services.producers",
        old='if header.producer_epoch < producer.producer_epoch:\n            raise StaleProducerEpochError(f"trans',
        new='if False:\n            raise StaleProducerEpochError(f"trans',
        by=f"{SERVICES_TESTS}/test_transactions.py",
    ),
    Mutation(
        name="end-fences",
        guard="a marker ends its epoch for the log it is in",
        module="storage.state.producer_state",
        old="epoch = header.producer_epoch + (1 if header.attributes & CONTROL_BIT else 0)",
        new="epoch = header.producer_epoch",
        by="tests/unit/storage/state/test_transactions.py",
    ),
    Mutation(
        name="end-cuts",
        guard="records of a committed transaction behind what its commit names are aborted",
        module="storage.state.transactions",
        old="if first < known.end_offset:",
        new="if not marker.is_commit:",
        by="tests/unit/storage/state/test_transactions.py",
    ),
    Mutation(
        name="end-confirmed",
        guard="a commit names as many records as the partition has of it",
        module=SERVICE,
        old="if (end_offset, records) != (written.end_offset, written.records):",
        new="if end_offset != written.end_offset:",
        by=f"{SERVICES_TESTS}/test_transactions.py",
    ),
    Mutation(
        name="request-ended-by-others",
        guard="a client of one request hears of no transaction that it did not begin",
        module=SERVICE,
        old="except (StaleProducerEpochError, TransactionAbortedError) as ended:",
        new="except ZeroDivisionError as ended:",
        by=f"{SERVICES_TESTS}/test_transactions.py",
    ),
    Mutation(
        name="end-lost-answer",
        guard="an end whose answer was lost is not called over for certain",
        module=SERVICE,
        old="                raise unknown from error\n            else:",
        new="                raise\n            else:",
        by=f"{SERVICES_TESTS}/test_transactions.py",
    ),
    Mutation(
        name="marker-committed",
        guard="the last stable offset passes a transaction once its marker is committed",
        module="storage.state.transactions",
        old="            end = min(end, ended.first_offset)",
        new="            pass",
        options=TRANSACTIONAL,
    ),
    Mutation(
        name="marker-told",
        guard="the quorum forgets a commit once its markers are committed",
        module=MARKERS,
        old="if identity in transactions.open or transactions.is_ending(identity, runner.high_watermark):",
        new="if identity in transactions.open:",
        options=TRANSACTIONAL,
    ),
    Mutation(
        name="marker-told-again",
        guard="a marker of which the quorum did not hear is told again",
        module=MARKERS,
        old="            if self._attended:\n                # Of a",
        new="            if False:\n                # Of a",
        by="tests/unit/node/replication/test_transaction_markers.py",
    ),
    Mutation(
        name="marker-role",
        guard="who leads no more ends no transaction by an image ahead of its replicas",
        module=MARKERS,
        old="if state is None or state.leader_epoch != runner.leader_epoch:",
        new="if False:",
        by="tests/unit/node/replication/test_transaction_markers.py",
    ),
    Mutation(
        name="open-too-long",
        guard="a transaction is over when a leader has known it to be open for so long, whatever clocks say",
        module=MARKERS,
        old="open_ms = max(wall_ms - found.began_ms, now_ms - since)",
        new="open_ms = wall_ms - found.began_ms",
        by="tests/unit/node/replication/test_transaction_markers.py",
    ),
    Mutation(
        name="undecided-unread",
        guard="readers of committed records see nothing behind the beginning of an open transaction",
        module="storage.state.transactions",
        old="            end = min(end, first.first_offset)",
        new="            pass",
        options=TRANSACTIONAL,
    ),
    Mutation(
        name="undecided-retained",
        guard="retention takes nothing of a transaction that is not decided",
        module=UPKEEP,
        old="self._log.maybe_apply_retention(self._clock.wall_ms(), self._stable_end())",
        new="self._log.maybe_apply_retention(self._clock.wall_ms(), self._high_watermark())",
        by="tests/unit/node/replica/test_log_upkeep.py",
    ),
    Mutation(
        name="undecided-deleted",
        guard="records of a transaction that is not decided are not deleted",
        module=RUNNER,
        old="before, partial(self.established_end, has_lease=has_lease), timeout_ms",
        new="before, partial(self.established_end, has_lease=has_lease, is_uncommitted=True), timeout_ms",
        by=f"{SERVICES_TESTS}/test_record_deletion.py",
    ),
    Mutation(
        name="undecided-compacted",
        guard="compaction ends where a transaction is not decided",
        module=UPKEEP,
        old="begin_compaction(\n            self._clock.wall_ms(), self._stable_end()",
        new="begin_compaction(\n            self._clock.wall_ms(), self._high_watermark()",
        by="tests/unit/node/replica/test_log_upkeep.py",
        more=(
            (
                UPKEEP,
                "compaction_need(\n            self._clock.wall_ms(), self._stable_end()",
                "compaction_need(\n            self._clock.wall_ms(), self._high_watermark()",
            ),
        ),
    ),
    Mutation(
        name="aborted-unread",
        guard="readers of committed records are given nothing of an aborted transaction",
        module="node.services.reads",
        old="return without_aborted(data, aborted) if aborted and not is_uncommitted else data",
        new="return data",
        options=TRANSACTIONAL,
    ),
    Mutation(
        name="aborted-kept",
        guard="a snapshot of a log's writers has its aborted transactions",
        module="storage.state.transactions",
        old="[[*identity, *found] for identity, found in self.aborted.items()],",
        new="[],",
        options=TRANSACTIONAL,
    ),
    Mutation(
        name="aborted-taken-first",
        guard="what is aborted is known as it was before the disk is read",
        module="node.services.reads",
        old="        aborted = runner.log.transactions.aborted\n"
        "        data = await self._read_stored(runner, offset, max_bytes, end_offset)\n",
        new="        data = await self._read_stored(runner, offset, max_bytes, end_offset)\n"
        "        aborted = runner.log.transactions.aborted\n",
        by=f"{SERVICES_TESTS}/test_cold_reads.py",
    ),
    Mutation(
        name="aborted-frees-key",
        guard="the idempotency key of an aborted transaction is free",
        module="storage.state.idempotency",
        old="            del self._entries[key_hash]\n            return\n        self",
        new="            return\n        self",
        by="tests/unit/storage/state/test_transactions.py",
    ),
    Mutation(
        name="cut-opens",
        guard="a transaction whose marker is cut off is open again",
        module="storage.log.cutting",
        old="        state.writers = writers_at(replica, state.table, end_offset)\n        if has_steps",
        new="        state.writers.forget_from(end_offset)\n        if has_steps",
        by="tests/unit/storage/log/test_cutting.py",
    ),
    Mutation(
        name="sent-once",
        guard="a write that no log recognises is not sent again when its fate is not known",
        module="node.services.to_leader",
        old="is_recognised = header.idempotency is not None or header.base_sequence >= 0",
        new="is_recognised = header.idempotency is not None or header.producer_id >= 0",
        options=TRANSACTIONAL,
    ),
    Mutation(
        name="crc-recovery",
        guard="recovery checks every batch's checksum",
        module="storage.segments.segment",
        old="header = check_batch(chunk, at)",
        new="header = decode_header(chunk, at)",
        options=("--faults", "flip_bit,cut_power,cut_all_power"),
    ),
    Mutation(
        name="crc-append",
        guard="a follower checks what its leader sent",
        module="storage.log.partition_log",
        old="found = list(iterate_batches(data))",
        new="from milena.model.batch.decode import iterate_headers\n        found = list(iterate_headers(data))",
        options=("--faults", "tamper,kill"),
    ),
    Mutation(
        name="frame-check",
        guard="a frame's authentication code covers its header and its place in the stream",
        module="raft_meta.consensus.frames",
        old="if not hmac.compare_digest(self._mac.digest(covered), mac):",
        new="if False:",
        options=("--faults", "tamper"),
    ),
    Mutation(
        name="suspect-report",
        guard="a replica whose recovery cut something is reported suspect",
        module="node.replication.local_replicas",
        old="if opened.log.health is not ReplicaHealth.SOUND",
        new="if opened.log.health is ReplicaHealth.DAMAGED",
        options=("--faults", "flip_bit,cut_all_power,kill_all"),
    ),
    Mutation(
        name="suspect-election",
        guard="a suspect is not elected while a sound member lives",
        module="raft_meta.machine.elections",
        old="sound = (fleet.live & frozenset(members)) - partitions.marked(partition)",
        new="sound = fleet.live & frozenset(members)",
        by="tests/scripts",
    ),
    Mutation(
        name="damaged-serves-nothing",
        guard="a damaged replica serves nothing",
        module="storage.log.partition_log",
        old="        if self.health is ReplicaHealth.DAMAGED:\n            raise ReplicaDamagedError(",
        new="        if False:\n            raise ReplicaDamagedError(",
        by="tests/unit/storage/replica/test_recovery.py::"
        "test_a_damaged_replica_serves_and_takes_nothing_but_what_restores_it",
    ),
    Mutation(
        name="clean-marker",
        guard="the mark of a clean stop is taken back before anything is written",
        module="storage.replica.data_directory",
        old="            self._is_clean = False\n            self._store_identity()",
        new="            pass",
        by="tests/unit/storage/replica/test_data_directory.py",
    ),
    Mutation(
        name="directory-id",
        guard="another directory under the same broker id leaves every ISR",
        module="raft_meta.machine.brokers",
        old="return before.directory_id == command.directory_id and is_epoch_known",
        new="return True",
        options=("--faults", "wipe,kill,pause"),
    ),
    Mutation(
        name="alter-isr-cas",
        guard="an ISR change names the partition epoch that it was made from",
        module=PARTITIONS,
        old="    if partition.partition_epoch != change.partition_epoch:\n        raise",
        new="    if False:\n        raise",
        by="tests/scripts",
    ),
    Mutation(
        name="alter-isr-leader-epoch",
        guard="an ISR change names its leader epoch",
        module=PARTITIONS,
        old="    if partition.leader_epoch != change.leader_epoch:",
        new="    if False:",
        by="tests/scripts",
    ),
    Mutation(
        name="elect-cas",
        guard="an election names the partition epoch that it was planned from",
        module=PARTITIONS,
        old="    if partition.partition_epoch != change.partition_epoch:\n        return None",
        new="    if False:\n        return None",
        by="tests/scripts",
    ),
    Mutation(
        name="leader-epoch-grows",
        guard="every change of leader raises the leader epoch",
        module=PARTITIONS,
        old="leader_epoch=partition.leader_epoch + (leader != partition.leader),",
        new="leader_epoch=partition.leader_epoch,",
    ),
    Mutation(
        name="controller-epoch",
        guard="what a deposed controller decided does nothing",
        module=PARTITIONS,
        old="    if controller_epoch != image.controller_epoch:",
        new="    if False:",
        by="tests/scripts",
    ),
    Mutation(
        name="lease",
        guard="a node without a lease does not say where a partition ends",
        module=RUNNER,
        old="            if not has_lease:",
        new="            if False:",
        by="tests/unit/node/replica/test_runner.py",
    ),
    Mutation(
        name="give-up-in-sync",
        guard="a damaged copy that is in sync, or may be elected, is not cut",
        module="node.replica.follower_log",
        old="        if self._counts_in(state):\n            return False",
        new="",
        by="tests/unit/node/replica/test_runner.py",
    ),
    Mutation(
        name="truncate-by-epoch",
        guard="a follower cuts where its leader's epochs say, not to its own high watermark",
        module="node.replica.follower",
        old="offset = min(own_end, diverging_end) if own_epoch == diverging_epoch else own_end",
        new="offset = high_watermark",
        by="tests/unit/node/replica/test_follower.py",
    ),
    Mutation(
        name="truncate-bound",
        guard="a follower never cuts below its checkpointed high watermark",
        module="node.replica.follower",
        old="is_allowed=offset >= min(high_watermark, log_end) or is_unclean",
        new="is_allowed=True",
        by="tests/unit/node/replica/test_follower.py",
    ),
    Mutation(
        name="read-below-watermark",
        guard="readers see nothing above the high watermark",
        module="node.services.reads",
        old='end = runner.readable_end(is_uncommitted=is_uncommitted)\n        data = b""',
        new='end = runner.log.log_end_offset\n        data = b""',
    ),
    Mutation(
        name="command-once",
        guard="a command that is proposed again is applied once",
        module="raft_meta.machine.proposers",
        old="    return proposer.window.get(envelope.sequence)",
        new="    return None",
        by="tests/scripts",
    ),
    Mutation(
        name="image-hash",
        guard="a node whose image differs from the controller's stops",
        module="raft_meta.machine.marks",
        old="if own != self.expected:",
        new="if False:",
        by="tests/unit/node/metadata/test_image_checks.py",
    ),
    Mutation(
        name="image-mark",
        guard="a check is compared with the image at the mark that it names",
        module="raft_meta.machine.marks",
        old="if before is None or before.index != check.index:",
        new="if before is None:",
        by="tests/unit/raft_meta/machine/test_marks.py",
    ),
    Mutation(
        name="image-mark-snapshot",
        guard="a node that came by a snapshot compares nothing until the next mark",
        module="node.metadata.store",
        old="        self.marks.forget()",
        new="        pass",
        by="tests/unit/node/metadata/test_image_checks.py",
    ),
    Mutation(
        name="deletion-adopted",
        guard="a deletion of records is acknowledged once every replica that may lead next has adopted it",
        module=LEADER,
        old="is not None and progress.log_start >= offset",
        new="is not None",
        by="tests/unit/node/services/test_record_deletion.py",
    ),
    Mutation(
        name="compaction-committed",
        guard="only what is committed is compacted",
        module="storage.log.log_compaction",
        old="            high_watermark, self._flushing.synced_end, self._replica.checkpoint.recovery_point",
        new="            self._flushing.synced_end, self._replica.checkpoint.recovery_point",
        by="tests/unit/storage/log/test_log_compaction.py",
    ),
    Mutation(
        name="tombstone-everywhere",
        guard="a tombstone goes once every replica has it",
        module="node.replica.compactor",
        old="and set(state.isr) == set(state.replicas)",
        new="",
        by="tests/unit/node/replica/test_compactor.py",
    ),
    Mutation(
        name="tombstone-settled",
        guard="that every replica has a tombstone counts once the image has had time to say otherwise",
        module="node.replica.compactor",
        old="elif now_ms - self._seen_ms >= self._settle_ms:",
        new="else:",
        by="tests/unit/node/replica/test_compactor.py",
    ),
    Mutation(
        name="move-complete",
        guard="a move ends once every new replica has everything",
        module="raft_meta.machine.reassignments",
        old="if missing or partition.leader is None or not moving.is_started:",
        new="if partition.leader is None or not moving.is_started:",
        by="tests/scripts",
    ),
    Mutation(
        name="give-up-epoch",
        guard="a copy that is given up begins another leader epoch: no position from before brings it back",
        module=PARTITIONS,
        old="        after,\n        leader_epoch=before.leader_epoch + 1,\n",
        new="        after,\n",
        by="tests/scripts",
    ),
    Mutation(
        name="last-known",
        guard="when every member is suspect, the one whose log reaches farthest is elected",
        module="raft_meta.machine.elections",
        old="return suspect.last_epoch, suspect.log_end_offset",
        new="return 0, 0",
        by="tests/scripts",
    ),
    Mutation(
        name="log-end-confirmed",
        guard="a leader that others may have followed says where a log ends only after the quorum has confirmed it",
        module="node.services.log_ends",
        old="if state is None or (state.leader, state.leader_epoch) != (leader_id, leader_epoch):",
        new="if state is None:",
        by="tests/unit/node/services/test_reads.py",
    ),
    Mutation(
        name="left-is-silent",
        guard="a replica that left acknowledges nothing while its files go",
        module="node.replication.local_replicas",
        old="and state.leader != me and me in state.replicas",
        new="and state.leader != me",
        by="tests/unit/node/replication/test_local_replicas.py",
    ),
    Mutation(
        name="vote-on-disk",
        guard="term and vote are written to the log",
        module="raft_meta.consensus.wal",
        old="            self._record(_HARD_STATE, term, voted_for)",
        new="            pass",
        by="raft",
    ),
    Mutation(
        name="applied-order",
        guard="the state machine is deterministic: nothing of a node's own enters it",
        module="node.metadata.store",
        old="applied = apply(self.image, index, envelope)",
        new="applied = apply(self.image, index + (id(self) % 7 == 0), envelope)",
    ),
    Mutation(
        name="commit-held",
        guard="a member commits only what it holds",
        module="raft_meta.machine.offsets",
        old="if item.partition not in held.get(item.topic_id, ()):",
        new="if False:",
        by="tests/scripts",
    ),
    Mutation(
        name="held-first",
        guard="a partition is given out once its holder has let go",
        module="node.groups.rebalance",
        old="key for key in partition_sets.keys_of(member.target) if key not in holders",
        new="key for key in partition_sets.keys_of(member.target)",
        by="tests/unit/node/groups/test_rebalance.py",
    ),
    Mutation(
        name="given-back-by-word",
        guard="what a member does not say that it has let go stays its own",
        module="node.groups.member_sessions",
        old="return partition_sets.difference(known, owned)",
        new="return known",
        by="tests/unit/node/groups/test_member_sessions.py",
    ),
    Mutation(
        name="token-extents",
        guard="the same token again brings the records of its answer, and no others",
        module="node.consumers.cursor",
        old="return [extent for extent in self._extents if self.has_open(extent.key)]",
        new="return None",
        by="tests/unit/node/consumers/test_tokens.py",
    ),
    Mutation(
        name="token-not-taken-back",
        guard="an answer under a token is not taken back because a connection broke",
        module="node.consumers.cursor",
        old="if call_id != self.call_id or self._extents is not None:",
        new="if call_id != self.call_id:",
        by="tests/unit/node/consumers/test_tokens.py",
    ),
    Mutation(
        name="token-arrived",
        guard="of a client that gives tokens only what it certainly has is committed when it goes",
        module="node.consumers.consumer_sessions",
        old="if self.cursor.token:\n            await",
        new="if False:\n            await",
        by="tests/unit/node/consumers/test_tokens.py",
    ),
    Mutation(
        name="committed-barrier",
        guard="what is committed is told after a barrier",
        module="node.groups.group_service",
        old="        image, _ = await self._current(group)\n        return offsets_of(",
        new="        image = self._metadata.image\n        return offsets_of(",
        by="tests/unit/node/groups/test_group_offsets.py",
    ),
    Mutation(
        name="seek-ends-calls",
        guard="a seek ends the records calls that were left behind",
        module="node.consumers.records_call",
        old="if session.seeks != self._seeks:",
        new="if False:",
        by="tests/unit/node/consumers/test_seeks.py",
    ),
    Mutation(
        name="foreign-commit",
        guard="a REST consumer that had a partition before goes on where the group is now",
        module="node.consumers.cursor",
        old="if is_exclusive and found != state.tried:",
        new="if False:",
        by="tests/unit/node/consumers/test_cursor.py",
    ),
    _raft(
        "sync",
        "the Raft log is synced before a vote or an acknowledgement leaves",
        ("outbox", 'if any(message["type"] in _PROMISES for _, message in messages):', "if False:"),
        ("core", "        self._wal.sync()\n\n    def _sync_before", "\n    def _sync_before"),
        by="raft",
    ),
    _raft(
        "ownsync",
        "a leader counts its own copy once it is synced",
        ("core", "        if self._library.is_leader:\n            self._wal.sync()\n", ""),
        ("core", "        self._wal.sync()\n\n    def _sync_before", "\n    def _sync_before"),
        by="raft",
    ),
    _raft(
        "snapsync",
        "a snapshot is synced before it is acknowledged",
        ("installer", "        incoming.sync()\n", ""),
        by="raft",
    ),
    _raft(
        "snapsync-local",
        "a snapshot is synced before it replaces the old one",
        ("snapshot", "        file.sync()\n    except", "    except"),
    ),
    _raft(
        "align",
        "the log's head is aligned with the snapshot at boot",
        ("installer", "position = self._wal.position_of(meta.last)", "position = None"),
    ),
    _raft(
        "oneconn",
        "what an older connection delivers is ignored",
        ("transport", "            older.abort()\n", ""),
        ("transport", "if self._live.get(node_id) is not connection:", "if False:"),
        (
            "transport",
            "                if self._live.get(node_id) is connection:",
            "                if True:",
        ),
        by=f"{CONSENSUS_TESTS}/test_transport.py",
    ),
    _raft(
        "ackterm",
        "acknowledgements carry the term",
        ("core", "if term != library.term or not library.is_leader:", "if not library.is_leader:"),
    ),
    _raft(
        "trim",
        "a voter truncates on conflict only",
        ("core", "known = matching_count(entries, self._wal.entries)", "known = 0"),
        by="raft",
    ),
    _raft(
        "trim-heartbeat",
        "what brings no entries truncates nothing",
        ("core", "keep=not rest", "keep=False"),
    ),
    _raft(
        "cap",
        "a voter commits no further than a message has verified",
        ("core", 'trimmed["commit_index"] = min(_int(message, "commit_index"), end)', "pass"),
        by="raft",
    ),
    _raft(
        "chunkcommit",
        "pieces of a snapshot commit nothing",
        ("installer", ', "commit_index": 0}', "}"),
        by="raft",
    ),
    _raft(
        "hint",
        "a follower that does not match says where to go on",
        ("core", "if reset and (previous is None or previous <= end):", "if False:"),
    ),
    _raft(
        "nextback",
        "a late acknowledgement does not move the leader's pipeline back",
        (
            "core",
            '        if answer["success"]:\n            library.set_next',
            "        if False:\n            library.set_next",
        ),
    ),
    _raft(
        "nextback-reset",
        "a late refusal does not move it below what is known to match",
        ("core", 'answer["next_node_idx"] = max(_int(answer, "next_node_idx"), matched)', "pass"),
    ),
    _raft(
        "prevote",
        "a node campaigns only after a majority said that it would vote",
        ("guards", "self.is_approved = majority <= 1", "self.is_approved = True"),
    ),
    _raft(
        "stepdown",
        "a stale leader is told the newer term",
        (
            "core",
            "            self.on_acknowledge(node_id, reset=False, next_index=1, success=False)\n",
            "",
        ),
    ),
    _raft(
        "stepdown-adopt",
        "a leader that is told a newer term steps down",
        ("core", "            self._adopt(term)\n            return\n", "            return\n"),
    ),
    _raft(
        "votes",
        "votes are counted by node, not by message",
        ("core", 'if self._votes.is_new(_int(message, "term"), node_id):', "if True:"),
    ),
    _raft(
        "learner",
        "a voter without its directory does not vote before it caught up",
        ("core", "self._is_learner = is_learner and self._is_voter", "self._is_learner = False"),
        by="raft",
        options=("--wipe",),
    ),
    _raft(
        "lost",
        "what was forwarded to a leader whose connection drops is answered",
        (
            "core",
            "        self._library.fail_forwarded()\n        self._library.forget_leader()\n",
            "",
        ),
    ),
    _raft(
        "orphans",
        "commands that were truncated or skipped are answered",
        ("core", "if not library.is_anything_waiting:", "if True:"),
        by="raft",
    ),
    _raft(
        "reqid",
        "ids of forwarded commands are of one life",
        ("core", "self._library.start_requests_at(incarnation << _REQUEST_BITS)", "pass"),
    ),
    _raft(
        "snapback",
        "an older snapshot does not take a voter back",
        ("installer", "if meta.index <= self._library.commit_index:", "if False:"),
        by="raft",
    ),
    _raft(
        "suffix",
        "a suffix that continues an installed snapshot is kept",
        ("installer", "position = self._wal.position_of(meta.last)", "position = None"),
    ),
    _raft(
        "suffixcap",
        "what follows an installed snapshot is not committed by it",
        (
            "installer",
            "self._library.commit_index = meta.index",
            "self._library.commit_index = self._wal.entries[-1][1]",
        ),
        by="raft",
    ),
    _raft(
        "chunks",
        "pieces of two transfers are not joined",
        ("installer", "if position != (node_id, transfer_id, offset):", "if False:"),
    ),
    _raft(
        "chunkack",
        "a piece of a snapshot is answered",
        (
            "installer",
            "self._acknowledge(node_id, reset=False, next_index=received + _FIRST, success=False)",
            "pass",
        ),
    ),
    _raft(
        "crc",
        "a damaged snapshot is not acknowledged",
        ("installer", "except CorruptLogError:\n", "except CorruptLogError:\n" + _ACKNOWLEDGED),
    ),
    _raft(
        "cancel",
        "a transfer ends with its connection",
        ("core", "        self._replicator.cancel(node_id)\n", ""),
    ),
    _raft(
        "cancel-term",
        "a transfer ends with its term",
        (
            "core",
            "        self._answer_orphans()\n        self._replicator.cancel_all()\n",
            "        self._answer_orphans()\n",
        ),
    ),
    _raft(
        "serrace",
        "a local snapshot that is late does not replace a newer one",
        (
            "snapshotter",
            "        if current is not None and current.index >= meta.index:",
            "        if False:",
        ),
    ),
    _raft(
        "busy",
        "a node is sent a bounded number of unanswered pieces",
        (
            "replicator",
            "return window_open and not self._sender.is_congested(node_id)",
            "return True",
        ),
    ),
    _raft(
        "tail",
        "the log is not shortened while a snapshot is sent",
        (
            "snapshotter",
            "return not is_sending_snapshot or size > _PATIENCE * bound",
            "return True",
        ),
    ),
    Mutation(
        name="log-without-gap",
        guard="a Raft log that begins anew leaves nothing of the former one in its file",
        module="raft_meta.consensus.wal",
        old="        self._record(_TRUNCATE, _FIRST_INDEX)",
        new="        if self.entries:\n            self._record(_TRUNCATE, self.entries[0][1])",
        by="tests/unit/raft_meta/consensus/test_wal.py",
    ),
    Mutation(
        name="truncate-as-asked",
        guard="a truncation of the Raft log names the index that it was asked for",
        module="raft_meta.consensus.wal",
        old="        self._record(_TRUNCATE, index)\n",
        new="        self._record(_TRUNCATE, max(index, self.entries[0][1]))\n",
        by="tests/unit/raft_meta/consensus/test_wal.py",
    ),
    Mutation(
        name="short-eligible",
        guard="replicas that a partition is made without are eligible while too few are in sync",
        module="raft_meta.machine.topics",
        old="eligible=others if len(isr) < min_insync else (),",
        new="eligible=(),",
        by="tests/scripts",
    ),
    Mutation(
        name="short-only",
        guard="replicas that a partition is made without are not eligible once enough are in sync",
        module="raft_meta.machine.topics",
        old="eligible=others if len(isr) < min_insync else (),",
        new="eligible=others,",
        by="tests/scripts",
    ),
    Mutation(
        name="short-level",
        guard="none is made eligible so before all nodes know that it is",
        module="raft_meta.machine.topics",
        old="configs.min_insync(topic) if image.feature_level >= ELIGIBLE_LEVEL else 0",
        new="configs.min_insync(topic)",
        by="tests/scripts",
    ),
    Mutation(
        name="first-scrub",
        guard="the first scrub after a start waits for the replicas",
        module="node.replica.scrubber",
        old="        await self._settled()\n",
        new="",
        by="tests/unit/node/replica/test_scrubber.py",
    ),
    Mutation(
        name="refused-told",
        guard="a follower says which records came damaged, so that the leader looks at its copy",
        module="node.replication.fetcher",
        old="        if followed.refused:\n",
        new="        if False:\n",
        by="tests/unit/node/replication/test_fetcher.py",
    ),
    Mutation(
        name="refused-here",
        guard="a leader takes a follower's word only of what that follows here, on a log that is its own",
        module="node.replication.fetch_server",
        old="if followed is not None and followed.is_accepted:\n            runner =",
        new="if followed is not None:\n            runner =",
        by="tests/unit/node/replication/test_fetch_server.py",
    ),
    Mutation(
        name="doubt-looks-first",
        guard="a segment that grows is closed for a doubt only if it is damaged",
        module="node.replica.scrubber",
        old="if look is not None and await self._check(look) is not None:",
        new="if look is not None:",
        by="tests/unit/node/replica/test_scrubber.py",
    ),
    Mutation(
        name="anew-tells",
        guard="a copy that begins anew leaves nobody waiting for what is gone",
        module="node.replica.follower_log",
        old='made anew")\n        self._acknowledgements.fail_above(-1, lost)',
        new='made anew")',
        by="tests/unit/node/replica/test_runner.py",
    ),
    Mutation(
        name="anew-at-epoch",
        guard="a copy begins anew at the beginning of a leader epoch only",
        module=RUNNER,
        old="            if self.role is ReplicaRole.FOLLOWER and self.settings.is_compacted:\n"
        "                self._following.maybe_begin_anew(state)\n",
        new="        if self.role is ReplicaRole.FOLLOWER and self.settings.is_compacted:\n"
        "            self._following.maybe_begin_anew(state)\n",
        by="tests/unit/node/replica/test_runner.py",
    ),
    Mutation(
        name="doubt-all-of-it",
        guard="what is doubted is checked as a whole where it is sound near the place",
        module="node.replica.scrubber",
        old="            await self._find(runner, offset, is_near=False)\n",
        new="            pass\n",
        by="tests/unit/node/replica/test_scrubber.py",
    ),
    Mutation(
        name="removed-told",
        guard="a member that is being removed for its silence is not told to go on",
        module="node.groups.coordinated_group",
        old="        if done is None:\n            return\n        await asyncio.wait([done])",
        new="        if done is None or done:\n            return\n        await asyncio.wait([done])",
        by="tests/unit/node/groups/test_coordinated_group.py",
    ),
    Mutation(
        name="cut-forgets-large",
        guard="what a cut takes away is not served from memory",
        module="storage.log.state",
        old="        self.uncommitted.forget()\n",
        new="",
        by="tests/unit/storage/segments/test_uncommitted.py",
    ),
    Mutation(
        name="gap-ends-large",
        guard="what is served from memory has no gaps",
        module="storage.segments.uncommitted",
        old="batch = self._by_offset.get(batch.next_offset)",
        new="batch = next((b for b in self._batches if b.base_offset >= batch.next_offset), None)",
        by="tests/unit/storage/segments/test_uncommitted.py",
    ),
    Mutation(
        name="refused-forgets-large",
        guard="what a follower refused as damaged is not sent again from memory",
        module=RUNNER,
        old="        self.log.forget_uncommitted()\n        self._context.on_doubt",
        new="        self._context.on_doubt",
        by="tests/unit/node/replication/test_fetch_server.py",
    ),
    Mutation(
        name="plain-is-whole",
        guard="records that are not unpacked fill their payload to its end",
        module="milena.model.columns",
        old="return at == end - 1 and buffer[at] == _NIL_BYTE",
        new="return buffer[at] == _NIL_BYTE",
        by="tests/property/test_batch_property.py",
    ),
    Mutation(
        name="start-keeps-epoch",
        guard="the epoch of the last record below the log start is not forgotten",
        module="storage.state.leader_epochs",
        old="bisect_right(self._starts, offset - 1) - 1",
        new="bisect_right(self._starts, offset) - 1",
        by="tests/unit/node/replica/test_runner.py",
    ),
    Mutation(
        name="unknown-epoch-anew",
        guard="a follower at the log start, of an epoch that the leader knows nothing of, starts anew",
        module="node.replica.leader",
        old="if epoch < 0 and offset == log_start:",
        new="if epoch < 0 and offset == log_start:\n            return FetchVerdict.ACCEPTED\n        if False:",
        by="tests/unit/node/replica/test_runner.py",
    ),
    Mutation(
        name="refused-cut-read",
        guard="recovery reads what a cut that met damage has to read",
        module="storage.log.cutting",
        old="                self._replica.remove_index(kept[-1].base_offset)\n",
        new="",
        by="tests/unit/storage/log/test_cutting.py",
    ),
    Mutation(
        name="doubt-of-deleted",
        guard="what was deleted is not looked for in what follows it",
        module="storage.log.partition_log",
        old="is_there = self.log_start_offset <= offset < self._state.end_offset",
        new="is_there = offset < self._state.end_offset",
        by="tests/unit/storage/segments/test_scrub.py",
    ),
    Mutation(
        name="heirs-eligible",
        guard="a leader alone in sync asks the quorum before it speaks of its end while others are eligible",
        module=RUNNER,
        old="return any(broker_id != self._context.broker_id for broker_id in self.state.eligible)",
        new="return False",
        by="tests/unit/node/replica/test_runner.py",
    ),
    Mutation(
        name="anew-at-zero",
        guard="a copy that is made anew is sent the writers of what was deleted",
        module="node.replica.follower_log",
        old="self._log.restart_at(0)",
        new="self._log.restart_at(self._log.log_start_offset)",
        by="tests/unit/node/replica/test_scrubber.py",
    ),
    Mutation(
        name="silent-node",
        guard="a node that has not heard of the quorum for too long lets nobody in",
        module=CALLERS,
        old="if heard_ms is None or self._clock.now_ms() > self._until_ms:",
        new="if heard_ms is None:",
        options=GUARDED,
    ),
    Mutation(
        name="closed-at-start",
        guard="a node that was told of a first user lets nobody in before it has heard",
        module=CALLERS,
        old="            if heard_ms is None:\n                return UNCERTAIN\n",
        new="",
        options=GUARDED,
    ),
    Mutation(
        name="stopped-process",
        guard="a process that was stopped for a while looks at the time before it lets anybody in",
        module=CALLERS,
        old="        if self._clock.now_ms() > self._until_ms:\n            self.attend()\n        if self.version",
        new="        if self.version",
        by="tests/unit/node/access/test_callers.py",
    ),
    Mutation(
        name="heard-and-lagging",
        guard="a node whose image is behind the controller's in access has not heard of the quorum",
        module="node.control.membership",
        old="if answer.access_version <= self._metadata.image.access_version:",
        new="if True:",
        by="tests/unit/node/control/test_membership.py",
    ),
    Mutation(
        name="head-of-others",
        guard="a head of the quick lane is its caller's, at one version of access",
        module="http_api.quick.lane",
        old="if not self._is_still(head.caller, connection):",
        new="if False:",
        by="tests/unit/http_api/quick/test_lane_access.py",
    ),
    Mutation(
        name="stream-goes-on",
        guard="a piece of a stream is for who may read it when it is sent",
        module="http_api.streams",
        old="                    call.check_again()\n",
        new="",
        by="tests/unit/http_api/test_access_endpoints.py",
    ),
    Mutation(
        name="names-of-bodies",
        guard="a handler asks for the names that a body holds before it does anything",
        module="http_api.native.transactions",
        old="call.authorize(Operation.WRITE, ResourceType.TOPIC, topics)",
        new="call.has_asked = True",
        by="tests/unit/http_api/test_access_matrix.py",
    ),
)


class _MutatingLoader(importlib.machinery.SourceFileLoader):
    """Compiles another text than the file's."""

    mutation: Mutation

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        source = Path(path).read_text(encoding="utf-8")
        return compile(mutated(source, self.mutation, fullname), path, "exec", dont_inherit=True)


class _MutatingFinder(importlib.abc.MetaPathFinder):
    """Finds the mutated module, and those ``anew``, by their source: a compiled one may lie beside it."""

    def __init__(self, mutation: Mutation, anew: Sequence[str] = ()) -> None:
        self._mutation = mutation
        self._anew = anew

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_mutated = fullname in {module for module, _, _ in self._mutation.cuts}
        if not is_mutated and not _is_among(fullname, self._anew):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        if not spec.origin.endswith(".py"):
            spec.origin = str(Path(spec.origin).with_name(f"{fullname.rpartition('.')[2]}.py"))
        spec.loader = importlib.machinery.SourceFileLoader(fullname, spec.origin)
        if is_mutated:
            spec.loader = _MutatingLoader(fullname, spec.origin)
            spec.loader.mutation = self._mutation
        return spec


def _is_among(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@contextmanager
def imported_anew(mutation: Mutation, *packages: str) -> Iterator[None]:
    """Within, an import of these packages, or modules, makes other ones, one of them without the guard.

    They are made of the sources, also where there are compiled ones. Afterwards all is as it was.
    """

    def found() -> dict[str, types.ModuleType]:
        return {name: sys.modules[name] for name in sys.modules if _is_among(name, packages)}

    kept = found()
    finder = _MutatingFinder(mutation, packages)
    sys.meta_path.insert(0, finder)
    try:
        for name in kept:
            del sys.modules[name]
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in found():
            del sys.modules[name]
        sys.modules.update(kept)
        for name, module in kept.items():
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, module)


def mutated(source: str, mutation: Mutation, module: str) -> str:
    """The module's source without the guard."""
    for old, new in (cut[1:] for cut in mutation.cuts if cut[0] == module):
        count = source.count(old)
        if count != 1:
            raise LookupError(f"{mutation.name}: found {count} times in {module}")
        source = source.replace(old, new)
    return source


def run_one(mutation: Mutation, seeds: str) -> int:
    """In this process, which ends with the simulation's exit code."""
    sys.meta_path.insert(0, _MutatingFinder(mutation))
    if mutation.by not in SIMULATIONS:
        import pytest  # noqa: PLC0415 - only where a test is the judge

        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(ROOT / mutation.by)]))
    stop = ["--stop"] if mutation.by == "raft" else []
    sys.argv = [mutation.by, "--seeds", seeds, *stop, *mutation.options]
    # Imported here: the guard must be gone before anything is loaded.
    if mutation.by == "raft":
        from tests.sim.raft.__main__ import main  # noqa: PLC0415
    else:
        from tests.sim.cluster.__main__ import main  # noqa: PLC0415
    return main()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one guard's absence. ``seeds``: how many it took; None: nobody noticed."""

    mutation: Mutation
    seeds: int | None
    symptom: str
    seconds: float


def judge(mutation: Mutation) -> Verdict:
    """Run it in a process of its own."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "tests.sim.mutations", "--one", mutation.name]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(mutation=mutation, seeds=None, symptom="", seconds=SECONDS_MAX)
    seconds = time.perf_counter() - began
    is_found = done.returncode == FOUND
    seeds = _seeds(done.stdout) if is_found else None
    if not is_found and done.returncode:
        raise RuntimeError(f"{mutation.name}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    if is_found and "LookupError" in done.stderr:
        raise RuntimeError(done.stderr[-500:])
    return Verdict(mutation=mutation, seeds=seeds, symptom=_symptom(done.stdout), seconds=seconds)


def _seeds(output: str) -> int:
    counts = [
        int(line.split()[0])
        for line in output.splitlines()
        if line[:1].isdigit() and " seeds in " in line
    ]
    return counts[-1] if counts else 0


def _symptom(output: str) -> str:
    for line in output.splitlines():
        if line.startswith("seed ") and "FAILED: " in line:
            return line.partition("FAILED: ")[2].partition(" ")[2]
        if line.startswith("seed ") and line.count(": ") >= 2 and "virtual s" not in line:
            return line.partition(": ")[2]
        if line.startswith("FAILED "):
            return line.partition("::")[2].partition(" - ")[0]
    return ""


def row(verdict: Verdict) -> str:
    """One line of the table."""
    mutation = verdict.mutation
    is_test = mutation.by.startswith("tests/")
    by = f"`{mutation.by}`" if is_test else mutation.by
    found = "fails" if is_test else str(verdict.seeds)
    if verdict.seeds is None:
        found = "**not found**"
    symptom = verdict.symptom.replace("|", "/")[:140]
    return f"| {mutation.name} | {mutation.guard} | {by} | {found} | {symptom} |"


HEADER = """# Guards taken out

Written by `python -m tests.sim.mutations` (`make mutations`). Each guard of the production code below was removed
alone, and the simulation (or, where another guard stands behind it, a directed test) had to notice. Seeds: how many
runs it took, the failing one included, beginning at seed 0. A row is from the last run of its guard.

| guard | what it says | noticed by | seeds | first symptom |
| --- | --- | --- | --- | --- |
"""


def table(kept: str, verdict: Verdict) -> str:
    """The table with this row anew, in the order of ``MUTATIONS``; rows of guards that are no more are left out."""
    rows = {line.split(" ", 2)[1]: line for line in kept.splitlines() if line.startswith("| ")}
    rows[verdict.mutation.name] = row(verdict)
    names = [mutation.name for mutation in MUTATIONS]
    return HEADER + "".join(f"{rows[name]}\n" for name in names if name in rows)


def main() -> int:
    """All of them, or some."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="names, comma separated")
    parser.add_argument("--one", help="run this one here")
    parser.add_argument("--seeds", default=f"0:{SEEDS_MAX}")
    options = parser.parse_args()
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    if options.one:
        return run_one(by_name[options.one], options.seeds)
    chosen = [by_name[name] for name in options.only.split(",") if name] or list(MUTATIONS)
    verdicts = []
    for mutation in chosen:
        verdict = judge(mutation)
        verdicts.append(verdict)
        print(f"{row(verdict)} {verdict.seconds:.0f} s", flush=True)
        # Row by row: a long run that is cut short has not been for nothing.
        TABLE.write_text(table(TABLE.read_text(encoding="utf-8"), verdict), encoding="utf-8")
    missed = sum(verdict.seeds is None for verdict in verdicts)
    print(f"{len(verdicts)} guards, {missed} whose absence nobody noticed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
