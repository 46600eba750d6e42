"""Consensus: one log of commands that a majority of voters holds, and a state machine that it is applied to.

It knows nothing about topics, brokers or HTTP. From the outside in:

    quorum        the interface that the rest of a node sees
    raft_quorum   its implementation: core, thread, connections and directory put together
    requests      commands between a caller's loop and the quorum's
    bootstrap     how a voter's directory begins, and how a lost one is distinguished from a new one
    driver        one thread, one pump, one timer
    transport     live connections; frames and messages define their bytes
    core          one Raft node without I/O, which production and simulation share
    guards        the faults of the library, with one guard for each
    replicator, installer, snapshotter, outbox
                  parts of the core: they send, receive snapshots, write snapshots, and order outgoing messages
    wal, snapshot the files on disk
    library       pysyncobj, and the only file that knows its private names

Guarantees: a command that got a response is in every later leader's log, at one index. Every node applies it once, in
the same order. It is not lost while the directories of a majority of voters survive. Not implemented: changes of the
set of voters, reads without a barrier, commands above 1 MiB.
"""
