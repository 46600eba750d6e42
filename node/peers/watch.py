"""Decides how long the peer of a link may be silent. Pure; ``node.peers.link`` drives it.

While a link is in use, its dialer ends a *round* every ``ping_ms``. In each round it sends a call or a ping, so that
the peer must send something. The watch counts rounds, not time: if this node itself stalls, only one round passes. A
link that is not used costs nothing.

A silent peer passes through these states:

1. *doubtful*: new calls are held back. A call that was not sent can still be sent to another node. But the fate of a
   call that was sent to a dead peer is unknown.
2. *silent*: waiting calls fail, and new ones are refused.
3. *lost*: the link is closed.
"""

from dataclasses import dataclass

from node.peers.codec import PeerChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """The settings of one channel: after how many rounds without a byte a peer is silent, and after how many lost."""

    ping_ms: int
    silent_rounds: int
    lost_rounds: int
    holds_back: bool = False
    """Whether a doubtful peer gets no new calls. Heartbeats and fetches are sent even so: they show when it is back."""


RHYTHMS = {
    # A client waits for each call, and could use another node within a second. Rounds are short, because the silence
    # may start at any time within a round.
    PeerChannel.RPC: Rhythm(ping_ms=100, silent_rounds=8, lost_rounds=40, holds_back=True),
    # A controller that was cut off must hear its brokers within a session after the network is back.
    PeerChannel.CONTROL: Rhythm(ping_ms=250, silent_rounds=4, lost_rounds=20),
    # A fetch waits for records, and no client waits for it.
    PeerChannel.FETCH: Rhythm(ping_ms=1_000, silent_rounds=4, lost_rounds=20),
}

WATCHED_MS = 10_000
"""How long a link is watched after its last call. So if the peer becomes silent, this is known before the next call."""
PATIENCE_MAX = 3
"""Largest patience with a slow peer, as a multiple of the rhythm's ``silent_rounds``."""
CALM_ROUNDS = 10
"""Number of rounds without such a silence after which a raised patience falls by one round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The actions that are due at the end of a round."""

    is_last: bool
    """Whether the link is not in use any more, so that the watch may pause."""
    is_lost: bool = False
    has_failed: bool = False
    """Whether waiting calls must fail."""
    wants_ping: bool = False


class PeerWatch:
    """Counts the silent rounds of one link.

    Invariants:
        ``patience`` is at least the rhythm's ``silent_rounds``, and at most ``PATIENCE_MAX`` times as large.
    """

    def __init__(self, rhythm: Rhythm) -> None:
        self.rhythm = rhythm
        self.patience = rhythm.silent_rounds
        """Silent rounds after which the peer counts as silent. It rises if a silent peer turns out to be only slow."""
        self._silent = 0
        self._calm = 0
        self._unused = 0
        self._has_heard = False
        self._has_asked = False

    @property
    def is_silent(self) -> bool:
        """Whether no caller should wait for this peer."""
        return self._silent >= self.patience and not self._has_heard

    @property
    def is_doubtful(self) -> bool:
        """Whether new calls should wait for a sign of life."""
        return (
            self.rhythm.holds_back
            and self.rhythm.silent_rounds // 2 <= self._silent < self.patience
            and not self._has_heard
        )

    @property
    def silent_ms(self) -> int:
        """How long the silence has lasted in ms, computed from the counted rounds."""
        return self._silent * self.rhythm.ping_ms

    def heard(self) -> None:
        """Note that a byte arrived."""
        self._has_heard = True

    def asked(self) -> None:
        """Note that a call was sent."""
        self._unused, self._has_asked = 0, True

    def end_round(self, *, is_awaited: bool) -> Round:
        """End a round. ``is_awaited``: whether any call waits for its response."""
        has_heard, self._has_heard = self._has_heard, False
        has_asked, self._has_asked = self._has_asked, False
        if has_heard:
            self._learn_patience()
            self._silent = 0
        else:
            self._silent += 1
        self._unused += 1
        is_wanted = self._unused * self.rhythm.ping_ms < WATCHED_MS
        if not (is_awaited or self._silent or is_wanted):
            return Round(is_last=True)
        return Round(
            is_last=False,
            is_lost=self._silent >= self.rhythm.lost_rounds,
            has_failed=self._silent >= self.patience,
            # Without a request in this round, silence in the next one would mean nothing. So send a ping unless the
            # peer was heard and a call was sent in this round.
            wants_ping=not (has_heard and has_asked),
        )

    def _learn_patience(self) -> None:
        """Raise the patience if the silence that has just ended was not much longer than the patience.

        The peer was then only slow. After any other silence, the round counts as calm. After ``CALM_ROUNDS`` calm
        rounds, a raised patience falls by one round.
        """
        least = self.rhythm.silent_rounds
        if self.patience <= self._silent <= 2 * self.patience:
            self.patience = min(2 * self._silent, PATIENCE_MAX * least)
            self._calm = 0
        elif self.patience > least:
            self._calm += 1
            if self._calm >= CALM_ROUNDS:
                self.patience -= 1
                self._calm = 0
