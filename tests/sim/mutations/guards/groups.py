"""Guards of consumer groups and REST consumers."""

from tests.sim.mutations.mutation import Mutation

GROUPS: tuple[Mutation, ...] = (
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
        old="if call_id != self.call_id or (self._extents is not None and not is_refused):",
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
    Mutation(
        name="removed-told",
        guard="a member that is being removed for its silence is not told to go on",
        module="node.groups.coordinated_group",
        old="        if done is None:\n            return\n        await asyncio.wait([done])",
        new="        if done is None or done:\n            return\n        await asyncio.wait([done])",
        by="tests/unit/node/groups/test_coordinated_group.py",
    ),
)
