"""Every scenario of the search. A part of storage that writes in a new order of steps gets one of its own here."""

from tests.crash.compaction_scenarios import COMPACTION_SCENARIOS
from tests.crash.directory_scenarios import DIRECTORY_SCENARIOS
from tests.crash.log_scenarios import LOG_SCENARIOS
from tests.crash.raft_scenarios import RAFT_SCENARIOS
from tests.crash.search import Scenario
from tests.crash.updates_scenarios import UPDATES_SCENARIOS

SCENARIOS: tuple[Scenario, ...] = (
    *LOG_SCENARIOS,
    *COMPACTION_SCENARIOS,
    *UPDATES_SCENARIOS,
    *RAFT_SCENARIOS,
    *DIRECTORY_SCENARIOS,
)
