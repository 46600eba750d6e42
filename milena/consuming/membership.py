"""Membership in a consumer group, as one member sees it: what it knows, says and has to do (pure).

The member reconciles, as in KIP-848. The group's coordinator tells it what it may work on (``assignment``); what it
works on is ``owned``. Whatever is owned beyond the assignment is to be given back: the shell lets the application
finish with it, commits, and calls ``give_back``; the next heartbeat, which lists what is owned, then says so, and only
then another member is given it. What is assigned and not owned yet is free, and is taken at once.

A member's life ends when the group does not know it any more, or when it leaves because its application hangs. Then
everything owned is *lost*: others may work on it already, so that nothing of it may be committed. The shell tells the
application and calls ``forget``; after that, and not before, the member joins anew under another id, so that what is
left of the former life cannot be taken for the new one's.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass

from milena.consuming.options import ConsumerOptions, Subscription
from milena.records import TopicPartition

JOINING = 0
LEAVING = -1
NOTHING: frozenset[TopicPartition] = frozenset()

FIRST_INTERVAL_MS = 1_000
"""Between heartbeats, until the coordinator has said how often it wants one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat. ``member_epoch`` 0 joins, -1 leaves, else it is the epoch last heard."""

    member_id: str
    member_epoch: int
    owned: frozenset[TopicPartition]
    subscription: Subscription | None = None
    """None: as before."""
    instance_id: str | None = None
    client_id: str = ""
    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatAnswer:
    """Answer of the coordinator to a heartbeat."""

    member_id: str
    member_epoch: int
    generation: int
    heartbeat_interval_ms: int
    assignment: frozenset[TopicPartition]


class GroupMembership:
    """One member's state. Owned by its consumer's loop.

    Invariants:
        - ``owned`` grows by ``take`` and only by what is assigned, and shrinks by ``give_back`` and ``forget``;
        - while ``is_lost``, there is no heartbeat to send, and nothing to take or to give back.
    """

    def __init__(
        self, options: ConsumerOptions, subscription: Subscription, new_id: Callable[[], str]
    ) -> None:
        self._options = options
        self._new_id = new_id
        self._subscription = subscription
        self._is_subscription_told = False
        self.member_id = new_id()
        self.member_epoch = JOINING
        self.generation = 0
        self.interval_ms = FIRST_INTERVAL_MS
        self.assignment = NOTHING
        self.owned = NOTHING
        self.is_lost = False
        self._is_gone = False

    @property
    def is_member(self) -> bool:
        """The group knows it."""
        return self.member_epoch > JOINING

    @property
    def is_due(self) -> bool:
        """The shell has something to do: ``is_lost``, ``revoked`` or ``added``."""
        return self.is_lost or (self.is_member and self.owned != self.assignment)

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """Partitions to be given back."""
        return NOTHING if self.is_lost or not self.is_member else self.owned - self.assignment

    @property
    def added(self) -> frozenset[TopicPartition]:
        """Partitions that may be taken."""
        return NOTHING if self.is_lost or not self.is_member else self.assignment - self.owned

    @property
    def _spoken_for(self) -> frozenset[TopicPartition]:
        """Partitions that this member works on or may begin to work on at any moment.

        A heartbeat that left out what is about to be taken would be understood as giving it back.
        """
        return self.owned | self.assignment

    # -- what is said and heard --------------------------------------------------------------------

    def beat(self, *, is_held: bool) -> Beat | None:
        """The next heartbeat; None while there is a loss that the application has not heard of.

        ``is_held``: the coordinator shall hold its answer back while there is nothing new.
        """
        if self.is_lost:
            return None
        if self.is_member and self._is_subscription_told:
            return Beat(
                member_id=self.member_id,
                member_epoch=self.member_epoch,
                owned=self._spoken_for,
                wait_ms=self.interval_ms if is_held else 0,
            )
        return Beat(
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            owned=self._spoken_for,
            subscription=self._subscription,
            instance_id=self._options.instance_id,
            client_id=self._options.client_id,
            assignor=self._options.assignor,
            session_timeout_ms=self._options.session_timeout_ms,
            rebalance_timeout_ms=self._options.rebalance_timeout_ms,
        )

    def farewell(self) -> Beat | None:
        """The heartbeat that leaves the group; None when the group does not know this member.

        One with an instance id does not leave: it is to come back under it, and find its partitions.
        """
        if self.is_lost or not self.is_member or self._options.instance_id is not None:
            return None
        return Beat(member_id=self.member_id, member_epoch=LEAVING, owned=NOTHING)

    def on_answer(self, beat: Beat, answer: BeatAnswer) -> bool:
        """Take in the answer to ``beat``; whether it changes anything. One to an earlier life is none."""
        if self.is_lost or beat.member_epoch == LEAVING or beat.member_id != self.member_id:
            return False
        if answer.member_epoch < self.member_epoch:
            # A node repeats what was true before: the later answer holds.
            return False
        before = self.member_epoch, self.assignment
        self.member_id = answer.member_id
        self.member_epoch = answer.member_epoch
        self.generation = answer.generation
        self.interval_ms = max(1, answer.heartbeat_interval_ms)
        self.assignment = answer.assignment
        if beat.subscription == self._subscription:
            self._is_subscription_told = True
        return before != (self.member_epoch, self.assignment)

    def lose(self, *, is_gone: bool = True) -> None:
        """The group has given this member up, or it has left.

        ``is_gone`` False: it keeps silent, and the group may know it yet.
        """
        self.is_lost = True
        self._is_gone = is_gone
        self.assignment = NOTHING

    # -- what is done ------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Want something else from now on."""
        self._subscription = subscription
        self._is_subscription_told = False

    def take(self, partitions: Set[TopicPartition]) -> None:
        """The application works on these as well."""
        assert partitions <= self.added, (partitions, self.assignment, self.owned)
        self.owned |= partitions

    def give_back(self, partitions: Set[TopicPartition]) -> None:
        """The application is done with these; the next heartbeat says so."""
        self.owned -= partitions

    def forget(self) -> None:
        """The application knows that everything was lost: the next heartbeat joins as somebody new.

        A member with an instance id that kept silent asks as who it was first. Another process may have taken over
        meanwhile, and a newcomer would take its place in turn.
        """
        if self._is_gone:
            self.member_id = self._new_id()
            self.member_epoch = JOINING
        self.owned = self.assignment = NOTHING
        self._is_subscription_told = False
        self.is_lost = False
