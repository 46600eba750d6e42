"""Guards of the Kafka interface: record batches, transactional ids, groups, and the order of requests."""

from tests.sim.mutations.mutation import Mutation

IDS = "raft_meta.machine.transactional_ids"
SERVICE = "node.services.transactions.transactional_ids"
MACHINE_TESTS = "tests/unit/raft_meta/machine/test_transactional_ids.py"
SERVICE_TESTS = "tests/unit/node/services/transactions/test_transactional_ids.py"

KAFKA: tuple[Mutation, ...] = (
    Mutation(
        name="kafka-inner-crc",
        guard="a batch is stored if its producer's checksum matches",
        module="milena.model.batch.v2",
        old="    if crc32c(memoryview(buffer)[_COVERED_POSITION : head.batch_bytes]) != head.crc:",
        new="    if False:",
        by="kafka",
    ),
    Mutation(
        name="kafka-offset-delta",
        guard="the records of a batch have the offset deltas 0, 1, 2, ...",
        module="milena.model.batch.v2_records",
        old="        if offset != place:",
        new="        if False:",
        by="kafka",
    ),
    Mutation(
        name="kafka-last-offset-delta",
        guard="the last offset delta of a batch is that of its last record",
        module="milena.model.batch.v2_checks",
        old="    if head.record_count != head.last_offset_delta + 1:",
        new="    if False:",
        by="kafka",
    ),
    Mutation(
        name="kafka-generation",
        guard="a member of a classic group commits under the present generation only",
        module="node.groups.classic.state",
        old=(
            "        self._check_generation(generation)\n        member.heard_ms = now_ms\n"
            "        if self.state is ClassicState.COMPLETING_REBALANCE:\n"
            "            raise _in_progress(self.group_id)\n\n    def leave"
        ),
        new="        member.heard_ms = now_ms\n\n    def leave",
        by="kafka",
        more=(
            (
                "raft_meta.machine.groups.offsets",
                "    if generation != group.generation:\n",
                "    if False:\n",
            ),
        ),
    ),
    Mutation(
        name="kafka-enlistment-awaited",
        guard="a client writes once the leaders know its transaction",
        module=SERVICE,
        old="        await self._tell_leaders(partitions)\n",
        new="",
        by="kafka",
    ),
    Mutation(
        name="kafka-staged-unstable",
        guard="the next owner of a partition waits for the transaction that has staged its offset",
        module="node.kafka.apis.group_offsets",
        old="            if needs_stable:\n",
        new="            if False:\n",
        by="kafka",
    ),
    Mutation(
        name="kafka-staged-invisible",
        guard="offsets of a transaction take effect with its commit",
        module=IDS,
        old="    after = replace(\n        row,\n        version=index,\n        # 0 means",
        new=(
            "    for commit in enlistment.offsets:\n"
            "        gathered = offsets.Gathered(image, index, now_ms)\n"
            "        gathered.add((commit,))\n"
            "        image = gathered.image()\n"
            "    after = replace(\n        row,\n        version=index,\n        # 0 means"
        ),
        by="kafka",
    ),
    Mutation(
        name="kafka-staged-dropped",
        guard="an abort drops what was staged",
        module=IDS,
        old="began_ms=WallMs(0), partitions=(), groups=(), offsets=())",
        new="began_ms=WallMs(0), partitions=(), groups=())",
        by="kafka",
    ),
    Mutation(
        name="kafka-holder",
        guard="the offsets of a transaction are those of a member that still holds the partition",
        module=IDS,
        old="        if group is not None and group.members:\n            _check_holder(image, group, commit)\n",
        new="",
        by=MACHINE_TESTS,
    ),
    Mutation(
        name="kafka-init-fences",
        guard="a process that takes over a transactional id raises the client's epoch",
        module=IDS,
        old="        raised(row, index, is_own=command.producer_id >= 0),\n",
        new="        row,\n",
        by="kafka",
    ),
    Mutation(
        name="kafka-init-aborts",
        guard="a process that takes over a transactional id aborts what is open",
        module=IDS,
        old="    if row.is_open:\n        image = _abort(image, row)\n        row = ended(row, index)\n",
        new="",
        by="kafka",
    ),
    Mutation(
        name="kafka-epoch-enlist",
        guard="only the present client of a transactional id enlists",
        module=IDS,
        old="    check_client_epoch(row, enlistment.producer_epoch)\n",
        new="",
        by="kafka",
    ),
    Mutation(
        name="kafka-epoch-produce",
        guard="only the present client of a transactional id writes (KIP-890)",
        module=SERVICE,
        old="    check_client_epoch(row, client.producer_epoch)\n    if key",
        new="    if key",
        by="kafka",
    ),
    Mutation(
        name="kafka-epoch-end",
        guard="a doubled end of a client with KIP-890 ends no other transaction",
        module=SERVICE,
        old="            if not is_repeated:\n                check_client_epoch(row, client.producer_epoch)\n",
        new="            is_repeated = False\n",
        by="kafka",
    ),
    Mutation(
        name="kafka-end-repeated",
        guard="a repeated end of a client with KIP-890 gets the response of the first one",
        module=SERVICE,
        old="is_repeated = raises_client and row.former_epoch == client.producer_epoch",
        new="is_repeated = False",
        by=SERVICE_TESTS,
    ),
    Mutation(
        name="kafka-end-version",
        guard="an end misses nothing that was enlisted meanwhile",
        module=IDS,
        old="    if end.version != row.version:\n",
        new="    if False:\n",
        by=MACHINE_TESTS,
    ),
    Mutation(
        name="kafka-end-led",
        guard="the commit of a Kafka client counts only while those lead who said how far its transaction has come",
        module=SERVICE,
        old="            leader_epochs=tuple(leader_epochs),\n",
        new="",
        by=SERVICE_TESTS,
    ),
    Mutation(
        name="kafka-overdue",
        guard="a transaction whose client is gone is aborted when its time is over",
        module="node.control.controller",
        old="        await self._abort_overdue(now_ms)\n",
        new="",
        by="kafka",
        more=(
            (
                "node.replication.transaction_markers",
                "            await self.clock.sleep(LOOK_MS)\n            self._abort_overdue()\n",
                "            await self.clock.sleep(LOOK_MS)\n",
            ),
            (
                "node.replication.transaction_markers",
                "        if image.brokers is not seen.brokers:\n            self._abort_overdue()\n",
                "",
            ),
        ),
    ),
    Mutation(
        name="kafka-overdue-fences",
        guard="the client of a transaction that was overdue is fenced",
        module=IDS,
        old="    return raised(after, index, is_own=end.version >= 0)\n",
        new="    return after if end.version < 0 else raised(after, index, is_own=True)\n",
        by=MACHINE_TESTS,
    ),
    Mutation(
        name="kafka-numbers",
        guard="the client's numbers tell a repeated batch of a transaction",
        module="storage.state.producer_state",
        old="        if header.client is None:\n            return verdict\n",
        new="        if header.producer_id != NO_PRODUCER:\n            return verdict\n",
        by="kafka",
    ),
    Mutation(
        name="kafka-sequences",
        guard="a batch that was written is not written again under another leader",
        module="storage.state.producer_state",
        old="            return Duplicate(batch.base_offset, batch.last_offset)\n    if now_ms",
        new="            return ACCEPT\n    if now_ms",
        by="kafka",
    ),
    Mutation(
        name="kafka-refused-first",
        guard="a new leader takes no batch before the one that it refused a moment ago",
        module="node.kafka.refused_batches",
        old="return sequence if batch.sequence > sequence and not is_late else None",
        new="return None",
        by="tests/unit/node/kafka/apis/test_produce.py",
    ),
    Mutation(
        name="kafka-behind-refused",
        guard="a node passes no batch on behind one that was refused",
        module="node.kafka.forwarding",
        old="if target is None or not reaches or self._is_behind_refused(call):",
        new="if target is None or not reaches:",
        by="tests/unit/node/kafka/test_forwarding.py",
    ),
    Mutation(
        name="kafka-behind-lost",
        guard="a node passes nothing on behind a request whose response is lost",
        module="node.kafka.forwarding",
        old="        if passed.lost is not None:\n",
        new="        if False:\n",
        by="tests/unit/node/kafka/test_forwarding.py",
    ),
    Mutation(
        name="kafka-behind-own",
        guard="a node passes no batch on to a new leader before one that it appended itself is decided",
        module="node.kafka.forwarding",
        old="            answer = asyncio.ensure_future(found.answer)\n",
        new="            return found\n",
        by="tests/unit/node/kafka/test_forwarding.py",
    ),
    Mutation(
        name="kafka-settles",
        guard="a node rests while a response waits for the one before it",
        module="node.kafka.connection",
        old="await asyncio.wait([self._unanswered[0].answer])",
        new="await asyncio.wait([self._unanswered[-1].answer])",
        by="tests/unit/node/kafka/test_connection.py",
    ),
    Mutation(
        name="kafka-verifies",
        guard="a batch gets a new checksum for Kafka clients only if its stored one is right",
        module="node.kafka.batches",
        old="for position, header in iterate_batches(result.batches):",
        new="for position, header in iterate_headers(result.batches):",
        by="tests/unit/node/kafka/test_batches.py",
    ),
)
