"""Black-box fault injection and consistency checking.

A run starts a cluster, writes and reads through its HTTP API, breaks things on a schedule that follows from a seed,
heals, reads everything back from every node's own replica, and judges from the history alone. It knows nothing of
the implementation but a start command (``cluster``) and the dialect of the API (``adapter``).

    python -m tests.chaos --scenario kill-leader --seconds 60 --seeds 7
    python -m tests.chaos --scenario list
    python -m tests.chaos.checker chaos-runs/RUN/history.jsonl
    python -m tests.chaos.selftest

Exit codes: 0 fine, 1 a safety violation, 2 the cluster did not recover or missed a goal, 3 inconclusive.

A write is *failed* only if it certainly did not happen (a refused connection, a 4xx, a code that promises "nothing
written"). A timeout, a reset or another 5xx leaves it *unknown*: it may or may not be in the log.

*Transactions* are written beside that in every scenario, to topics of their own (``transactors``): in one request, with
and without a key; step by step, committed, aborted and left; and by programs that consume, produce, and move their
group's offsets. Readers read committed records, or all. They are judged as wholes (``transaction_checks``) and by their
order (``dependencies``). ``--no-transactions`` leaves them out.

*Power cut* (disk ``loop``): the node is frozen, its ext4 image is shut down without flushing, the process is killed,
the image mounted again; only what was synced, file and directory entry, is still there. ``kill -9`` cannot show a
missing fsync; this does. *Network* (``netns``): a process of ours joins TUN interfaces of one namespace per node,
and drops, delays or doubles packets per direction. Both need root.

Consumer groups have a workload and a judge of their own, under the same faults:

    python -m tests.chaos.groups --scenario kill-leader --seconds 60 --seed 7 --work chaos-runs/groups

Not covered: membership changes, clock skew, disks that lie about a sync.
"""
