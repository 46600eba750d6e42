"""REST consumers on a node: the coordinator of their group keeps their state, and every node can reach it.

On every node: ``consumer_service`` (implements the API's port), ``consumer_messages`` (calls between nodes),
``partition_ends`` (waiting for records), ``consumer_assembly``.

On the coordinator of the consumer's group: ``consumer_coordinator`` (handles the calls), ``consumer_sessions`` (a
consumer's state in memory), ``records_call`` (one read), ``start_positions``, ``session_commits``, ``consumer_views``
(a consumer's entry in the image), ``consumer_expiry``.

Pure: ``cursor`` (positions, what was delivered, what has arrived), ``answer_cutting`` (which records go into a
response).
"""
