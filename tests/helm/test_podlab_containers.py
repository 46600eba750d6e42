"""What the runner computes before a container starts, and how it judges what happened."""

import base64

import pytest

from tests.helm.podlab import machine
from tests.helm.podlab.clients.ledger import Stored, decode, encode, judge
from tests.helm.podlab.container_plan import PodPlace, VolumePlace, network_files, plan_container
from tests.helm.podlab.container_shim import ContainerSpec, mounts_in_order
from tests.helm.podlab.environment import (
    ContainerConfigError,
    build_environment,
    expand,
    pod_field,
)
from tests.helm.podlab.images import Image, RootLayout
from tests.helm.podlab.journal import Happening, Journal, Stop
from tests.helm.podlab.manifest import Document, Manifest
from tests.helm.podlab.pods import port_number
from tests.helm.podlab.probes import ProbeTally, parse_probe
from tests.helm.podlab.release import SET, overlaps, unclean
from tests.helm.podlab.volumes import VolumeFile, plan_volumes

OBJECTS = {
    ("ConfigMap", "c"): Manifest({"kind": "ConfigMap", "data": {"k": "plain", "n": "2"}}),
    ("Secret", "s"): Manifest(
        {"kind": "Secret", "data": {"k": base64.b64encode(b"hidden").decode()}}
    ),
    ("PersistentVolumeClaim", "data-db-0"): Manifest({"kind": "PersistentVolumeClaim"}),
}
POD = Manifest(
    {
        "kind": "Pod",
        "metadata": {"name": "db-0", "namespace": "default", "labels": {"zone": "a"}},
        "spec": {
            "hostname": "db-0",
            "subdomain": "h",
            "securityContext": {"runAsUser": 7, "fsGroup": 9},
        },
        "status": {"podIP": "10.0.0.1"},
    }
)


def find(kind: str, name: str) -> Manifest | None:
    return OBJECTS.get((kind, name))


class TestEnvironment:
    def build(self, container: Document) -> dict[str, str]:
        return build_environment(POD, Manifest(container), {"PATH": "/bin"}, find)

    def test_sources_in_rising_order(self) -> None:
        entries: list[Document] = [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)$(P_k)$(X)$$(A)"},
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "Z", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['zone']"}}},
            {
                "name": "M",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
        ]
        container: Document = {
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}],
            "env": [*entries],
            "resources": {"limits": {"memory": "1Gi"}},
        }
        assert self.build(container) == {
            "PATH": "/bin",
            "HOSTNAME": "db-0",
            "P_k": "plain",
            "P_n": "2",
            "A": "1",
            "B": "1plain$(X)$(A)",
            "K": "hidden",
            "Z": "a",
            "M": "1024",
        }

    def test_a_missing_key_stops_the_pod_unless_it_is_optional(self) -> None:
        def entry(*, optional: bool) -> Document:
            reference: Document = {"name": "s", "key": "gone", "optional": optional}
            return {"env": [{"name": "A", "valueFrom": {"secretKeyRef": reference}}]}

        with pytest.raises(ContainerConfigError, match="Secret s has no key gone"):
            self.build(entry(optional=False))
        assert "A" not in self.build(entry(optional=True))

    def test_a_missing_object_stops_the_pod(self) -> None:
        with pytest.raises(ContainerConfigError, match="ConfigMap gone not found"):
            self.build({"envFrom": [{"configMapRef": {"name": "gone"}}]})

    def test_fields_of_the_pod(self) -> None:
        assert pod_field(POD, "status.podIP") == "10.0.0.1"
        with pytest.raises(ContainerConfigError, match=r"no field spec\.x"):
            pod_field(POD, "spec.x")

    def test_dollars(self) -> None:
        assert expand("$$(A) $(A) $(B)", {"A": "x"}) == "$(A) x $(B)"


class TestVolumes:
    def plan(self, **volume: object) -> object:
        spec: Document = {"volumes": [{"name": "v", **volume}]}  # type: ignore[dict-item]
        return plan_volumes(Manifest({"metadata": {"name": "db-0"}, "spec": spec}), find)[0]

    def test_files_of_objects_with_their_modes(self) -> None:
        secret = {"secretName": "s", "defaultMode": 0o440, "items": [{"key": "k", "path": "x/key"}]}
        planned = self.plan(secret=secret)
        assert planned.files == (VolumeFile("x/key", b"hidden", 0o440),)  # type: ignore[attr-defined]

    def test_a_projection_gathers(self) -> None:
        sources = [
            {"configMap": {"name": "c", "items": [{"key": "k", "path": "a"}]}},
            {"secret": {"name": "s"}},
        ]
        planned = self.plan(projected={"sources": sources})
        assert [file.path for file in planned.files] == ["a", "k"]  # type: ignore[attr-defined]

    def test_claims_and_empty_directories_are_filled_by_containers(self) -> None:
        claim = self.plan(persistentVolumeClaim={"claimName": "data-db-0"})
        assert (claim.claim, claim.files) == ("data-db-0", None)  # type: ignore[attr-defined]
        assert self.plan(emptyDir={}).files is None  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        "volume",
        [
            {"secret": {"secretName": "gone"}},
            {"secret": {"secretName": "s", "items": [{"key": "gone", "path": "x"}]}},
            {"persistentVolumeClaim": {"claimName": "gone"}},
            {"hostPath": {"path": "/"}},
        ],
    )
    def test_what_is_missing_or_unknown_stops_the_pod(self, volume: dict[str, object]) -> None:
        with pytest.raises(ContainerConfigError):
            self.plan(**volume)


class TestContainerPlan:
    LAYOUT = RootLayout(binds=(), links={}, files={}, directories=())
    PLACE = PodPlace(
        network="/n", directory="/d", volumes={"v": VolumePlace(directory="/v", is_read_only=True)}
    )
    IMAGE = Image(entrypoint=("run",), arguments=("--all",), user=5, group=6)

    def plan(self, **container: object) -> ContainerSpec:
        return plan_container(
            POD,
            Manifest({"name": "c", **container}),  # type: ignore[dict-item]
            image=self.IMAGE,
            layout=self.LAYOUT,
            place=self.PLACE,
            log="/log",
            find=find,
        )

    @pytest.mark.parametrize("place", ["/v/project", "/opt/project", "/project"])
    def test_no_volume_covers_the_project_wherever_it_lies(self, place: str) -> None:
        spec = self.plan(volumeMounts=[{"name": "v", "mountPath": "/v"}])
        spec["layout"]["binds"] = [place, "/usr"]
        targets = [mount["target"] for mount in mounts_in_order(spec)]
        assert targets == sorted(["/usr", "/v", place])
        assert "/v/project" not in targets or targets.index("/v") < targets.index("/v/project")

    @pytest.mark.parametrize(
        ("container", "command"),
        [
            ({}, ["run", "--all"]),
            ({"args": ["--one"]}, ["run", "--one"]),
            ({"command": ["other"]}, ["other"]),
            ({"command": ["other"], "args": ["$(HOSTNAME)"]}, ["other", "db-0"]),
            ({"args": []}, ["run"]),
        ],
    )
    def test_commands(self, container: dict[str, object], command: list[str]) -> None:
        assert self.plan(**container)["command"] == command

    def test_the_containers_user_wins_over_the_pods_and_that_over_the_images(self) -> None:
        planned = self.plan()
        assert (planned["user"], planned["group"], planned["groups"]) == (7, 6, [6, 9])
        assert self.plan(securityContext={"runAsUser": 8})["user"] == 8

    def test_root_is_refused_where_it_must_not_be(self) -> None:
        with pytest.raises(ContainerConfigError, match="runAsNonRoot"):
            self.plan(securityContext={"runAsUser": 0, "runAsNonRoot": True})

    def test_rights(self) -> None:
        planned = self.plan(
            securityContext={
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
        )
        assert planned["is_root_read_only"]
        assert planned["is_no_new_privileges"]
        assert planned["drops_capabilities"]
        assert not self.plan()["is_no_new_privileges"]

    def test_mounts(self) -> None:
        mount = {"name": "v", "mountPath": "/x/", "subPathExpr": "$(HOSTNAME)"}
        assert self.plan(volumeMounts=[mount])["mounts"] == [
            {"source": "/v/db-0", "target": "/x", "is_read_only": True}
        ]
        with pytest.raises(ContainerConfigError, match="no volume named gone"):
            self.plan(volumeMounts=[{"name": "gone", "mountPath": "/x"}])

    def test_files_that_tell_the_pod_its_place(self) -> None:
        files = network_files(POD)
        assert "10.0.0.1 db-0.h.default.svc.cluster.local db-0" in files["/etc/hosts"]
        assert "search default.svc.cluster.local svc.cluster.local" in files["/etc/resolv.conf"]

    def test_ports_by_name(self) -> None:
        pod = Manifest(
            {"spec": {"containers": [{"ports": [{"name": "api", "containerPort": 80}]}]}}
        )
        assert port_number(pod, "api") == port_number(pod, "80") == 80
        with pytest.raises(KeyError, match="gone"):
            port_number(pod, "gone")


class TestProbes:
    def tally(self, **probe: object) -> ProbeTally:
        rule = parse_probe(Manifest({"readinessProbe": probe}), "readinessProbe")  # type: ignore[dict-item]
        assert rule is not None
        return ProbeTally(rule)

    def test_kubernetes_defaults(self) -> None:
        rule = self.tally().rule
        assert (rule.period_s, rule.timeout_s, rule.failure_threshold) == (10, 1, 3)
        assert parse_probe(Manifest({}), "livenessProbe") is None

    def test_only_a_row_of_answers_counts(self) -> None:
        tally = self.tally(failureThreshold=2, successThreshold=2)
        answers = [False, True, False, False, True, True]
        known = [tally.note(is_good=good) for good in answers]
        assert known == [None, None, None, False, None, True]


def journal_of(*steps: tuple[str, Happening, Stop | None]) -> Journal:
    journal = Journal(lambda: 0.0)
    for pod, what, stop in steps:
        journal.note(pod, "milena", what, stop=stop)
    return journal


CLEAN = Stop(was_killed=False, exit_code=0, seconds=1)


class TestVerdicts:
    @pytest.mark.parametrize(
        "stop",
        [
            Stop(was_killed=True, exit_code=137, seconds=9),
            Stop(was_killed=False, exit_code=1, seconds=1),
            Stop(was_killed=False, exit_code=0, seconds=1, pre_stop_error="exit code 1"),
        ],
    )
    def test_unclean_stops_are_told(self, stop: Stop) -> None:
        stopped = Happening.STOPPED
        assert not unclean(journal_of((f"{SET}-0", stopped, CLEAN)).entries)
        assert unclean(journal_of((f"{SET}-0", stopped, stop)).entries)

    def test_a_rollout_that_does_not_wait_is_told(self) -> None:
        first, second = f"{SET}-2", f"{SET}-1"
        patient = [
            (first, Happening.STOPPED, CLEAN),
            (first, Happening.READY, None),
            (second, Happening.STOPPED, CLEAN),
        ]
        assert not overlaps(journal_of(*patient).entries)
        assert overlaps(journal_of(patient[0], patient[2], patient[1]).entries)

    def test_a_ledger_survives_the_log_that_it_is_written_to(self) -> None:
        records = [Stored(0, 5, "17"), Stored(3, 0, "é")]
        lines = ["starting", *(encode(record) for record in records), "failed 3: gone", "[cut"]
        assert decode(lines) == records

    @pytest.mark.parametrize(
        ("read", "fault"),
        [
            ([Stored(0, 0, "0"), Stored(0, 1, "1")], ""),
            ([Stored(0, 0, "0"), Stored(0, 1, "1"), Stored(0, 2, "2")], ""),
            ([Stored(0, 0, "0")], "lost"),
            ([Stored(0, 0, "0"), Stored(0, 1, "1"), Stored(1, 0, "1")], "doubled"),
            ([Stored(0, 0, "1"), Stored(0, 1, "0")], "moved"),
            ([Stored(0, 0, "0"), Stored(0, 1, "1"), Stored(0, 2, "9")], "foreign"),
        ],
    )
    def test_the_judge_names_every_fault(self, read: list[Stored], fault: str) -> None:
        verdict = judge(3, [Stored(0, 0, "0"), Stored(0, 1, "1")], read)
        found = {name for name in ("lost", "doubled", "moved", "foreign") if getattr(verdict, name)}
        assert found == ({fault} if fault else set())
        assert verdict.is_clean is (not fault)


class TestMachine:
    def test_missing_tools_are_named_by_their_packages(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("prerequisites.find_program", lambda _: None)
        with pytest.raises(machine.LabError, match="apt-get install iproute2 iptables util-linux"):
            machine.check_machine()

    def test_who_is_not_root_is_told_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("prerequisites.find_program", lambda tool: f"/bin/{tool}")
        monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
        with pytest.raises(machine.LabError, match="only root"):
            machine.check_machine()
