"""``python -m tests.hostile``: the long form, against three nodes; exit code 1 when something was harmed."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.hostile.attacks import ATTACKS, LONG, Attack, Scale
from tests.hostile.scram_attacks import SCRAM_ATTACKS, authorization, closed_cluster, sign_in
from tests.hostile.siege import besiege
from tests.support.clusters.live_cluster import running_cluster


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", action="append", help="only these; all by default")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="the scale of the tests")
    options = parser.parse_args()

    def chosen(attacks: Sequence[Attack]) -> list[Attack]:
        names = options.attack
        return [one for one in attacks if not names or one.__name__.replace("_", "-") in names]

    scale = Scale() if options.short else LONG
    report = partial(print, flush=True)
    try:
        if attacks := chosen(ATTACKS):
            with (
                tempfile.TemporaryDirectory() as folder,
                running_cluster(Path(folder), node_count=options.nodes) as cluster,
            ):
                asyncio.run(besiege(cluster, attacks, scale, report))
        if attacks := chosen(SCRAM_ATTACKS):
            with (
                tempfile.TemporaryDirectory() as folder,
                closed_cluster(Path(folder), options.nodes) as cluster,
            ):
                siege = besiege(
                    cluster, attacks, scale, report, authorization=authorization(), sign_in=sign_in
                )
                asyncio.run(siege)
    except AssertionError as error:
        print(f"HARM {error}")
        return 1
    print("no harm done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
