"""All guards that are removed, with one module for each part of the code."""

from tests.sim.mutations.guards.access import ACCESS
from tests.sim.mutations.guards.consensus import CONSENSUS
from tests.sim.mutations.guards.exactly_once import EXACTLY_ONCE
from tests.sim.mutations.guards.groups import GROUPS
from tests.sim.mutations.guards.kafka import KAFKA
from tests.sim.mutations.guards.metadata import METADATA
from tests.sim.mutations.guards.replication import REPLICATION
from tests.sim.mutations.guards.storage import STORAGE
from tests.sim.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *CONSENSUS,
    *METADATA,
    *STORAGE,
    *REPLICATION,
    *EXACTLY_ONCE,
    *GROUPS,
    *KAFKA,
    *ACCESS,
)
