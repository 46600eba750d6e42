"""``python -m tests.crash``: the full search, a line a scenario; exit code 1 when a promise was broken."""

import argparse
import sys
import time

from tests.crash.scenarios import SCENARIOS
from tests.crash.search import FULL, SHORT, Counts, CrashSearchError, Search


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", action="append", help="only these; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="what the tests run")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(scenario.name for scenario in SCENARIOS))
        return 0
    total, failures = Counts(), 0
    for scenario in SCENARIOS:
        if options.scenario and scenario.name not in options.scenario:
            continue
        began = time.perf_counter()
        search = Search(scenario, SHORT if options.short else FULL, options.seed)
        try:
            search.run()
        except CrashSearchError as error:
            failures += 1
            print(f"BROKEN {error}")
        total.add(search.counts)
        print(
            f"{scenario.name:20} {time.perf_counter() - began:6.1f} s  {search.counts}", flush=True
        )
    print(f"{'total':20} {total}\npromises broken: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
