"""A guard, and the change of the source text that removes it."""

from dataclasses import dataclass

SIMULATIONS = frozenset({"cluster", "kafka", "raft"})

Cut = tuple[str, str, str]
"""A change: (module, old text, new text)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One guard. In the source of ``module``, ``old`` is replaced by ``new``; ``more`` has further changes.

    ``by`` is one of ``SIMULATIONS``, which must find a problem, or the test that must fail. ``options`` are for the
    simulation, for example the kinds of faults for which the guard matters, so that fewer seeds are needed.
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
        """Return all changes."""
        return ((self.module, self.old, self.new), *self.more)


def mutated(source: str, mutation: Mutation, module: str) -> str:
    """Return the source of a module without the guard."""
    for old, new in (cut[1:] for cut in mutation.cuts if cut[0] == module):
        count = source.count(old)
        if count != 1:
            raise LookupError(f"{mutation.name}: found {count} times in {module}")
        source = source.replace(old, new)
    return source
