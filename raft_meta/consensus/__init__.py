"""Consensus: one log of commands that a majority of voters holds, and a state machine that it is applied to.

Knows nothing of topics, brokers or HTTP. From the outside in:

    quorum        the interface that the rest of a node sees
    raft_quorum   its implementation: core, thread, connections and directory put together
    requests      commands between a caller's loop and the quorum's
    bootstrap     how a voter's directory begins, and how a lost one is told from a new one
    driver        one thread, one pump, one timer
    transport     live connections; frames and messages are its bytes
    core          one Raft node without I/O, which production and simulation share
    guards        one guard a fault of the library
    replicator, installer, snapshotter, outbox
                  parts of the core: sending, receiving snapshots, writing them, and what leaves when
    wal, snapshot what is on disk
    library       pysyncobj, and the only file that knows its private names

What it guarantees: a command that was answered is in every later leader's log, at one index, applied once on every
node, in one order; not lost while a majority of voters' directories survives. What it leaves out: changes of the set
of voters, reads without a barrier, commands above 1 MiB.
"""
