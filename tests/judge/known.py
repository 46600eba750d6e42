"""Known faults that the judge tolerates: a rule, and a part of the finding's line. Empty is the goal."""

KNOWN: tuple[tuple[str, str], ...] = ()
