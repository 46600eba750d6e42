"""Consumer groups on a node: the coordinator's part, and how every node reaches it.

On every node: ``group_service`` (the API's port), ``coordinator_calls`` (to the coordinator, and its handlers),
``group_messages`` (what travels between nodes), ``descriptions`` (groups as clients see them), ``group_assembly``.

On the coordinator: ``coordinator`` (the groups of this node, and time), ``coordinated_group`` (heartbeats and silence
of one), ``group_writer`` (its next states, to the quorum), ``member_sessions``, ``group_offsets`` (commits and expiry),
``rest_members`` (with ``node.consumers``).

Pure: ``heartbeat_rules``, ``members``, ``rebalance``, ``assignors``, ``subscriptions``.
"""
