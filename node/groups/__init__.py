"""Consumer groups on a node: the coordinator, and the calls from every node to it.

On every node: ``group_service`` (the API's port), ``coordinator_calls`` (calls to the coordinator, and its handlers),
``group_messages`` (messages between nodes), ``descriptions`` (groups as clients see them), ``server_members`` (members
by Kafka's consumer protocol), ``group_assembly``.

On the coordinator: ``coordinator`` (the groups of this node, and timers), ``coordinated_group`` (heartbeats and silence
of one group), ``group_writer`` (proposes its next states to the quorum), ``member_sessions``, ``group_offsets``
(commits and expiry), ``rest_members`` (with ``node.consumers``).

Pure: ``heartbeat_rules``, ``members``, ``rebalance``, ``assignors``, ``subscriptions``.
"""
