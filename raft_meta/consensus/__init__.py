"""Consensus: one log of commands that a majority of voters holds, and a state machine that applies the log.

The package knows nothing about topics, brokers or HTTP. Its modules, from the outside in:

    quorum        the interface that the rest of a node uses
    raft_quorum   the implementation: it combines core, thread, connections and directory
    requests      pass commands from a caller's event loop to the quorum's, and responses back
    bootstrap     the first start of a voter, and how it tells a lost directory from a new one
    driver        one thread, one event loop, one timer
    transport     live connections; frames and messages define their bytes
    core          one Raft node without I/O; production and simulation use the same class
    guards        the faults of the library, with one guard for each
    replicator, installer, snapshotter, reads, outbox
                  parts of the core: they send entries and snapshots, receive snapshots, write snapshots, find the
                  committed index for barriers, and order outgoing messages
    wal, snapshot the files on disk
    library       the wrapper of pysyncobj, and the only module that uses its private names

Guarantees: a command that got a response is in the log of every later leader, at one index. Every node applies it
once, in the same order. The command is not lost while the directories of a majority of voters survive. Not
implemented: changes of the set of voters, commands above 1 MiB.
"""
