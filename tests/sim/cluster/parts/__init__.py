"""Further parts of a run, each with its own topic, clients and invariants; a seed draws some of them.

To add a part, write a module with a subclass of ``Part``, and add its name here, also to the list of later parts.
"""

from tests.sim.cluster.parts.aging import AgingTopic
from tests.sim.cluster.parts.audited import AuditTopic
from tests.sim.cluster.parts.compacted import CompactedTopic
from tests.sim.cluster.parts.conditional import ConditionalTopic
from tests.sim.cluster.parts.growing import GrowingTopic
from tests.sim.cluster.parts.guarded import GuardedTopic
from tests.sim.cluster.parts.moving import MovingTopic
from tests.sim.cluster.parts.part import Part
from tests.sim.cluster.parts.rehashed import RehashedTopic
from tests.sim.cluster.parts.rotting import RottingTopic
from tests.sim.cluster.parts.transactional import TransactionalTopics

PART_CHANCE = 0.4
PARTS: dict[str, type[Part]] = {
    "growing": GrowingTopic,
    "compacted": CompactedTopic,
    "rotting": RottingTopic,
    "moving": MovingTopic,
    "conditional": ConditionalTopic,
    "transactional": TransactionalTopics,
    "rehashed": RehashedTopic,
    "guarded": GuardedTopic,
    "audited": AuditTopic,
    "aging": AgingTopic,
}
LATER_PARTS = ("moving", "conditional", "transactional", "rehashed", "guarded", "audited", "aging")
"""The parts that are drawn independently of everything else; see ``World.later``."""
