"""REST consumers on a node: the memory of their group's coordinator, and how every node reaches it.

On every node: ``consumer_service`` (the API's port), ``consumer_messages`` (calls between nodes), ``partition_ends``
(waiting for records), ``consumer_assembly``.

On the coordinator of their group: ``consumer_coordinator`` (its handlers), ``consumer_sessions`` (a consumer in
memory), ``records_call`` (one read), ``start_positions``, ``session_commits``, ``consumer_views`` (what the image
says), ``consumer_expiry``.

Pure: ``cursor`` (positions, what was delivered, what has arrived), ``answer_cutting`` (which records go into a
response).
"""
