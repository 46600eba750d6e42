"""Guards of authentication and authorization."""

from tests.sim.mutations.mutation import Mutation

CALLERS = "node.access.callers"
GUARDED = ("--parts", "guarded")

ACCESS: tuple[Mutation, ...] = (
    Mutation(
        name="silent-node",
        guard="a node that has not heard of the quorum for too long lets nobody in",
        module=CALLERS,
        old="if heard_ms is None or self.clock.now_ms() > self._until_ms:",
        new="if heard_ms is None:",
        options=GUARDED,
    ),
    Mutation(
        name="closed-at-start",
        guard="a node that was told of a first user lets nobody in before it has heard",
        module=CALLERS,
        old="            if heard_ms is None:\n                return UNCERTAIN\n",
        new="",
        options=GUARDED,
    ),
    Mutation(
        name="stopped-process",
        guard="a process that was stopped for a while looks at the time before it lets anybody in",
        module=CALLERS,
        old="        if self.clock.now_ms() > self._until_ms:\n            self.attend()\n        if self.version",
        new="        if self.version",
        by="tests/unit/node/access/test_callers.py",
    ),
    Mutation(
        name="heard-and-lagging",
        guard="a node whose image is behind the controller's in access has not heard of the quorum",
        module="node.control.membership",
        old="if answer.access_version <= self.metadata.image.access_version:",
        new="if True:",
        by="tests/unit/node/control/test_membership.py",
    ),
    Mutation(
        name="head-of-others",
        guard="a head of the quick lane is its caller's, at one version of access",
        module="http_api.quick.lane",
        old="if not self._is_still(head.caller, connection):",
        new="if False:",
        by="tests/unit/http_api/quick/test_lane_access.py",
    ),
    Mutation(
        name="bodies-in-the-lane",
        guard="the quick lane asks for the names that a body holds before it does anything",
        module="http_api.native.transactions.transact",
        old="if not all(caller.may(operation, kind, name) for name in names):",
        new="if False:",
        by="tests/unit/http_api/quick/test_lane_transactions.py",
    ),
    Mutation(
        name="lane-without-a-name",
        guard="what a request of the quick lane changes is told of with its caller's name",
        module="http_api.quick.lane",
        old="asked = on_behalf.principal.set(head.principal)",
        new='asked = on_behalf.principal.set("")',
        by="tests/unit/http_api/quick/test_lane_transactions.py",
    ),
    Mutation(
        name="keys-twice",
        guard="a head that names two idempotency keys is not one for the quick lane",
        module="http_api.quick.lane",
        old="if names & _TELLING or len(names) != len(message.headers):",
        new="if names & _TELLING:",
        by="tests/unit/http_api/quick/test_lane.py",
    ),
    Mutation(
        name="stream-goes-on",
        guard="a piece of a stream is for who may read it when it is sent",
        module="http_api.streaming.answer",
        old="                    call.rights.check_again()\n",
        new="",
        by="tests/unit/http_api/native/access/test_access_endpoints.py",
    ),
    Mutation(
        name="names-of-bodies",
        guard="a handler asks for the names that a body holds before it does anything",
        module="http_api.native.transactions.transact",
        old="    ask(Operation.WRITE, ResourceType.TOPIC, topics)\n",
        new="    ask(Operation.WRITE, ResourceType.TOPIC, ())\n",
        by="tests/unit/http_api/access/test_access_matrix.py",
    ),
    Mutation(
        name="audit-anywhere",
        guard="a change is written to the audit topic at the offset after the last one, or not at all",
        module="node.services.audit_writer",
        old="expected_end=end.offset,",
        new="expected_end=None,",
        by="tests/unit/node/services/test_audit_writer.py",
    ),
    Mutation(
        name="audit-from-memory",
        guard="who does not know what the audit topic has last reads it there",
        module="node.services.audit_writer",
        old="return LogEnd(topic.topic_id, last + 1, number_in(values[-1]))",
        new="return LogEnd(topic.topic_id, last + 1, 0)",
        by="tests/unit/node/services/test_audit_writer.py",
    ),
    Mutation(
        name="audit-forged",
        guard="nobody but the cluster writes to the audit topic",
        module="node.services.own_topics",
        old="if topic == audit.TOPIC:",
        new="if False:",
        by="tests/unit/node/services/test_audit_writer.py",
    ),
)
