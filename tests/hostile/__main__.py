"""``python -m tests.hostile``: the long form, against three nodes; exit code 1 when something was harmed."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.hostile.attacks import ATTACKS, LONG, Scale
from tests.hostile.siege import besiege
from tests.support.clusters.live_cluster import running_cluster


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", action="append", help="only these; all by default")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="the scale of the tests")
    options = parser.parse_args()
    chosen = [
        attack
        for attack in ATTACKS
        if not options.attack or attack.__name__.replace("_", "-") in options.attack
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(Path(folder), node_count=options.nodes) as cluster,
    ):
        try:
            scale = Scale() if options.short else LONG
            asyncio.run(besiege(cluster, chosen, scale, lambda line: print(line, flush=True)))
        except AssertionError as error:
            print(f"HARM {error}")
            return 1
    print("no harm done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
