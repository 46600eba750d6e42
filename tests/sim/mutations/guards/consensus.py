"""Guards of consensus, and of its log on disk."""

from tests.sim.mutations.mutation import Cut, Mutation

CONSENSUS_TESTS = "tests/unit/raft_meta/consensus"
_ACKNOWLEDGED = (
    "            self._acknowledge(node_id, reset=False, next_index=None, success=True)\n"
)


def _raft(
    name: str, guard: str, *cuts: Cut, by: str = "", options: tuple[str, ...] = ()
) -> Mutation:
    """Return a guard against a fault of the Raft library; ``raft_meta.consensus.guards`` lists them.

    By default, its scenario in ``tests.support.clusters.guard_scenarios`` must fail without it.
    """
    first, *more = ((f"raft_meta.consensus.{module}", old, new) for module, old, new in cuts)
    return Mutation(
        name=f"raft-{name}",
        guard=guard,
        module=first[0],
        old=first[1],
        new=first[2],
        more=tuple(more),
        by=by or f"{CONSENSUS_TESTS}/test_guards.py::test_scenario_goes_well[raft-{name}]",
        options=options,
    )


CONSENSUS: tuple[Mutation, ...] = (
    Mutation(
        name="frame-check",
        guard="a frame's authentication code covers its header and its place in the stream",
        module="raft_meta.consensus.frames",
        old="if not hmac.compare_digest(self._mac.digest(covered), mac):",
        new="if False:",
        options=("--faults", "tamper"),
    ),
    Mutation(
        name="vote-on-disk",
        guard="term and vote are written to the log",
        module="raft_meta.consensus.wal",
        old="            self._record(_HARD_STATE, term, voted_for)",
        new="            pass",
        by="raft",
    ),
    _raft(
        "sync",
        "the Raft log is synced before a vote or an acknowledgement leaves",
        ("outbox", 'if any(message["type"] in _PROMISES for _, message in messages):', "if False:"),
        ("core", "        self._wal.sync()\n\n    def _sync_before", "\n    def _sync_before"),
        by="raft",
    ),
    Mutation(
        name="read-round",
        guard="a barrier ends when a majority has confirmed the leader's term",
        module="raft_meta.consensus.reads",
        old="while self._rounds and len(self._rounds[0].confirmed) >= self._majority:",
        new="while self._rounds:",
        by=f"{CONSENSUS_TESTS}/test_reads.py",
    ),
    Mutation(
        name="read-own-term",
        guard="a new leader serves barriers once an entry of its term is committed",
        module="raft_meta.consensus.reads",
        old="if self._library.commit_index < self._first_own:",
        new="if False:",
        by="raft",
    ),
    Mutation(
        name="read-applied",
        guard="a barrier ends when its index is applied here",
        module="raft_meta.consensus.reads",
        old="due = [tickets for index, tickets in self._found if index <= applied]",
        new="due = [tickets for index, tickets in self._found]",
        by=f"{CONSENSUS_TESTS}/test_reads.py",
    ),
    Mutation(
        name="read-learner",
        guard="a learner confirms no round",
        module="raft_meta.consensus.reads",
        old=" and not is_learner:",
        new=":",
        by=f"{CONSENSUS_TESTS}/test_reads.py",
    ),
    _raft(
        "ownsync",
        "a leader counts its own copy once it is synced",
        ("core", "        if self._library.is_leader:\n            self._wal.sync()\n", ""),
        ("core", "        self._wal.sync()\n\n    def _sync_before", "\n    def _sync_before"),
        by="raft",
    ),
    _raft(
        "snapsync",
        "a snapshot is synced before it is acknowledged",
        ("installer", "        incoming.sync()\n", ""),
        by="raft",
    ),
    _raft(
        "snapsync-local",
        "a snapshot is synced before it replaces the old one",
        ("snapshot", "        file.sync()\n    except", "    except"),
    ),
    _raft(
        "align",
        "the log's head is aligned with the snapshot at boot",
        ("installer", "position = self._wal.position_of(meta.last)", "position = None"),
    ),
    _raft(
        "oneconn",
        "what an older connection delivers is ignored",
        ("transport", "            older.abort()\n", ""),
        ("transport", "if self._live.get(node_id) is not connection:", "if False:"),
        (
            "transport",
            "                if self._live.get(node_id) is connection:",
            "                if True:",
        ),
        by=f"{CONSENSUS_TESTS}/test_transport.py",
    ),
    _raft(
        "ackterm",
        "acknowledgements carry the term",
        ("core", "if term != library.term or not library.is_leader:", "if not library.is_leader:"),
    ),
    _raft(
        "trim",
        "a voter truncates on conflict only",
        ("core", "known = matching_count(entries, self._wal.entries)", "known = 0"),
        by="raft",
    ),
    _raft(
        "trim-heartbeat",
        "what brings no entries truncates nothing",
        ("core", "keep=not rest", "keep=False"),
    ),
    _raft(
        "cap",
        "a voter commits no further than a message has verified",
        ("core", 'trimmed["commit_index"] = min(_int(message, "commit_index"), end)', "pass"),
        by="raft",
    ),
    _raft(
        "chunkcommit",
        "pieces of a snapshot commit nothing",
        ("installer", ', "commit_index": 0}', "}"),
        by="raft",
    ),
    _raft(
        "hint",
        "a follower that does not match says where to go on",
        ("core", "if reset and (previous is None or previous <= end):", "if False:"),
    ),
    _raft(
        "nextback",
        "a late acknowledgement does not move the leader's pipeline back",
        (
            "core",
            '        if answer["success"]:\n            library.set_next',
            "        if False:\n            library.set_next",
        ),
    ),
    _raft(
        "nextback-reset",
        "a late refusal does not move it below what is known to match",
        ("core", 'answer["next_node_idx"] = max(_int(answer, "next_node_idx"), matched)', "pass"),
    ),
    _raft(
        "prevote",
        "a node campaigns only after a majority said that it would vote",
        ("guards", "self.is_approved = majority <= 1", "self.is_approved = True"),
    ),
    _raft(
        "stepdown",
        "a stale leader is told the newer term",
        (
            "core",
            "            self.on_acknowledge(node_id, reset=False, next_index=1, success=False)\n",
            "",
        ),
    ),
    _raft(
        "stepdown-adopt",
        "a leader that is told a newer term steps down",
        ("core", "            self._adopt(term)\n            return\n", "            return\n"),
    ),
    _raft(
        "votes",
        "votes are counted by node, not by message",
        ("core", 'if self._votes.is_new(_int(message, "term"), node_id):', "if True:"),
    ),
    _raft(
        "learner",
        "a voter without its directory does not vote before it caught up",
        ("core", "self._is_learner = is_learner and self._is_voter", "self._is_learner = False"),
        by="raft",
        options=("--wipe",),
    ),
    _raft(
        "lost",
        "what was forwarded to a leader whose connection drops is answered",
        (
            "core",
            "        self._library.fail_forwarded()\n        self._library.forget_leader()\n",
            "",
        ),
    ),
    _raft(
        "orphans",
        "commands that were truncated or skipped are answered",
        ("core", "if not library.is_anything_waiting:", "if True:"),
        by="raft",
    ),
    _raft(
        "reqid",
        "ids of forwarded commands are of one life",
        ("core", "self._library.start_requests_at(incarnation << _REQUEST_BITS)", "pass"),
    ),
    _raft(
        "snapback",
        "an older snapshot does not take a voter back",
        ("installer", "if meta.index <= self._library.commit_index:", "if False:"),
        by="raft",
    ),
    _raft(
        "suffix",
        "a suffix that continues an installed snapshot is kept",
        ("installer", "position = self._wal.position_of(meta.last)", "position = None"),
    ),
    _raft(
        "suffixcap",
        "what follows an installed snapshot is not committed by it",
        (
            "installer",
            "self._library.commit_index = meta.index",
            "self._library.commit_index = self._wal.entries[-1][1]",
        ),
        by="raft",
    ),
    _raft(
        "chunks",
        "pieces of two transfers are not joined",
        ("installer", "if position != (node_id, transfer_id, offset):", "if False:"),
    ),
    _raft(
        "chunkack",
        "a piece of a snapshot is answered",
        (
            "installer",
            "self._acknowledge(node_id, reset=False, next_index=received + _FIRST, success=False)",
            "pass",
        ),
    ),
    _raft(
        "crc",
        "a damaged snapshot is not acknowledged",
        ("installer", "except CorruptLogError:\n", "except CorruptLogError:\n" + _ACKNOWLEDGED),
    ),
    _raft(
        "cancel",
        "a transfer ends with its connection",
        ("core", "        self._replicator.cancel(node_id)\n", ""),
    ),
    _raft(
        "cancel-term",
        "a transfer ends with its term",
        (
            "core",
            "        self._answer_orphans()\n        self._replicator.cancel_all()\n",
            "        self._answer_orphans()\n",
        ),
    ),
    _raft(
        "serrace",
        "a local snapshot that is late does not replace a newer one",
        (
            "snapshotter",
            "        if current is not None and current.index >= meta.index:",
            "        if False:",
        ),
    ),
    _raft(
        "busy",
        "a node is sent a bounded number of unanswered pieces",
        (
            "replicator",
            "return window_open and not self._sender.is_congested(node_id)",
            "return True",
        ),
    ),
    _raft(
        "tail",
        "the log is not shortened while a snapshot is sent",
        (
            "snapshotter",
            "return not is_sending_snapshot or size > _PATIENCE * bound",
            "return True",
        ),
    ),
    Mutation(
        name="log-without-gap",
        guard="a Raft log that begins anew leaves nothing of the former one in its file",
        module="raft_meta.consensus.wal",
        old="        self._record(_TRUNCATE, _FIRST_INDEX)",
        new="        if self.entries:\n            self._record(_TRUNCATE, self.entries[0][1])",
        by="tests/unit/raft_meta/consensus/test_wal.py",
    ),
    Mutation(
        name="truncate-as-asked",
        guard="a truncation of the Raft log names the index that it was asked for",
        module="raft_meta.consensus.wal",
        old="        self._record(_TRUNCATE, index)\n",
        new="        self._record(_TRUNCATE, max(index, self.entries[0][1]))\n",
        by="tests/unit/raft_meta/consensus/test_wal.py",
    ),
)
