"""A guard, and the text of the code without it."""

from dataclasses import dataclass

SIMULATIONS = frozenset({"cluster", "raft"})

Cut = tuple[str, str, str]
"""(module, old, new)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One guard. ``old`` → ``new`` in the source of ``module``; ``more``: likewise, where it stands in several places.

    ``by``: one of ``SIMULATIONS``, which must notice, or the test that must fail. ``options``: of the simulation, say
    kinds of faults that make the guard matter, so that fewer seeds do.
    """

    name: str
    guard: str
    module: str
    old: str
    new: str
    by: str = "cluster"
    options: tuple[str, ...] = ()
    more: tuple[Cut, ...] = ()

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """All of it."""
        return ((self.module, self.old, self.new), *self.more)


def mutated(source: str, mutation: Mutation, module: str) -> str:
    """The module's source without the guard."""
    for old, new in (cut[1:] for cut in mutation.cuts if cut[0] == module):
        count = source.count(old)
        if count != 1:
            raise LookupError(f"{mutation.name}: found {count} times in {module}")
        source = source.replace(old, new)
    return source
