"""Black-box fault injection and consistency checking.

A run starts a cluster, writes and reads through its interfaces, injects faults on a schedule that is drawn from a seed,
heals, and reads everything back from every node's own replica. The verdict uses only the history of these operations.
The package knows nothing of the implementation except a start command (``cluster``), the HTTP API (``adapter``) and
Kafka's protocol (``kafka_clients``).

    python -m tests.chaos --scenario kill-leader --seconds 60 --seeds 7
    python -m tests.chaos --scenario list
    python -m tests.chaos.checker chaos-runs/RUN/history.jsonl
    python -m tests.chaos.selftest

Exit codes: 0 fine, 1 a safety violation, 2 the cluster did not recover or missed a goal, 3 inconclusive.

A write is *failed* only if it certainly had no effect (a refused connection, a 4xx, a code that promises "nothing
written"). After a timeout, a reset or another 5xx, its fate is *unknown*: it may or may not be in the log.

*Transactions* run in every scenario, on their own topics (``transactors``). Some are single requests, with and without
an idempotency key. Some are written step by step, and then committed, aborted or left open. Some are made by programs
that consume, produce, and move their group's offsets. Readers read committed records, or all records. The transactions
are checked as wholes (``transaction_checks``) and by their order (``dependencies``). ``--no-transactions`` omits them.

*Clients*: writers, readers and programs with transactions use HTTP and Kafka's protocol in turns, and ``--clients``
chooses: ``http``, ``kafka`` or both. Kafka's are idempotent producers, transactional ones, consumers, and members of a
group that consume, produce and commit in one transaction (``kafka_programs``). Requests with a whole transaction exist
over HTTP only.

*Power cut* (disk ``loop``): the node is frozen, its ext4 image is shut down without flushing, the process is killed,
and the image is mounted again. Only synced data and directory entries survive. ``kill -9`` cannot reveal a missing
fsync; a power cut does. *Network* (``netns``): a process of this package connects the TUN interfaces of one namespace
per node. It drops, delays or duplicates packets per direction. Both need root.

Consumer groups have their own workload and checker, under the same faults:

    python -m tests.chaos.groups --scenario kill-leader --seconds 60 --seed 7 --work chaos-runs/groups

Not covered: membership changes, clock skew, disks that report a sync that did not happen.
"""
