"""``python -m tests.sim.nodes --first 0 --count 100 --seconds 60``: many seeds; the first bad one ends it."""

import argparse
import logging
import sys
import traceback

from tests.sim.nodes.campaign import Campaign
from tests.support.time.virtual_time import run_virtual


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--log", action="store_true", help="what the nodes say")
    options = parser.parse_args()
    if options.log:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    bad = 0
    for seed in range(options.first, options.first + options.count):
        campaign = Campaign(seed, options.seconds)
        try:
            problems = run_virtual(campaign.run())
        except Exception:
            problems = [traceback.format_exc()]
        acknowledged = sum(w.offset is not None for w in campaign.history.writes.values())
        print(f"seed={seed} writes={len(campaign.history.writes)} acknowledged={acknowledged}")
        if problems:
            bad += 1
            print("\n".join([*campaign.events, *problems[:20]]))
            if not options.keep_going:
                return 1
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
