"""What the runner's API server keeps: documents, selectors, patches, helm's protobuf, the store, admission."""

import base64
import itertools

import pytest

from tests.helm.podlab.admission import admit_change, admit_new
from tests.helm.podlab.api_server import parse_target, read_body
from tests.helm.podlab.manifest import (
    Document,
    Manifest,
    parse_quantity,
    read_documents,
    whole_units,
)
from tests.helm.podlab.patches import merge
from tests.helm.podlab.protobuf import decode_secret
from tests.helm.podlab.selectors import parse_query, selects
from tests.helm.podlab.store import ApiError, Change, ObjectStore


class TestManifest:
    SAMPLE = Manifest({"a": {"b": 3, "t": "x", "f": True, "l": ["p"], "n": None}, "m": [{"k": 1}]})

    def test_fields_are_reached_by_path(self) -> None:
        found = self.SAMPLE
        assert (found.number("a.b"), found.text("a.t"), found.flag("a.f")) == (3, "x", True)
        assert found.texts("a.l") == ["p"]
        assert [part.number("k") for part in found.parts("m")] == [1]

    def test_missing_and_null_are_the_same(self) -> None:
        assert not self.SAMPLE.has("a.n")
        assert self.SAMPLE.number("a.n", 7) == self.SAMPLE.number("x.y.z", 7) == 7

    @pytest.mark.parametrize(
        ("path", "getter"), [("a.b", "text"), ("a.f", "number"), ("a.t", "part")]
    )
    def test_another_type_is_refused(self, path: str, getter: str) -> None:
        with pytest.raises(TypeError, match=path):
            getattr(self.SAMPLE, getter)(path)

    @pytest.mark.parametrize(
        ("text", "value"), [("500m", 0.5), ("1Gi", 2**30), ("128Mi", 2**27), ("2", 2), ("1k", 1000)]
    )
    def test_quantities(self, text: str, value: float) -> None:
        assert parse_quantity(text) == value

    def test_a_bad_quantity_is_refused(self) -> None:
        with pytest.raises(ValueError, match="1Qi"):
            parse_quantity("1Qi")

    def test_units_are_rounded_up(self) -> None:
        assert whole_units("1500m", "1") == 2
        assert whole_units("1Gi", "1Mi") == 1024

    def test_empty_documents_of_a_stream_are_left_out(self) -> None:
        assert [found.kind for found in read_documents("---\nkind: A\n---\n---\nkind: B\n")] == [
            "A",
            "B",
        ]


class TestSelectors:
    @pytest.mark.parametrize(
        ("operator", "values", "holds"),
        [
            ("In", ["db"], True),
            ("In", ["web"], False),
            ("NotIn", ["web"], True),
            ("Exists", [], True),
            ("DoesNotExist", [], False),
        ],
    )
    def test_expressions(self, operator: str, values: list[str], holds: bool) -> None:
        rule: Document = {"key": "app", "operator": operator, "values": [*values]}
        assert selects(Manifest({"matchExpressions": [rule]}), {"app": "db"}) is holds

    def test_all_labels_must_match_and_an_empty_selector_takes_all(self) -> None:
        assert not selects(Manifest({"matchLabels": {"app": "db", "x": "y"}}), {"app": "db"})
        assert selects(Manifest({}), {})

    def test_queries(self) -> None:
        assert parse_query("a=b,c==d") == {"a": "b", "c": "d"}
        assert parse_query("") == {}
        with pytest.raises(ValueError, match="equality"):
            parse_query("a!=b")


class TestPatches:
    def test_null_removes_and_other_fields_stay(self) -> None:
        assert merge(
            {"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}}, is_strategic=False
        ) == {"b": {"c": 4, "d": 3}}

    def test_a_merge_patch_replaces_lists(self) -> None:
        assert merge({"env": [{"name": "a"}]}, {"env": [{"name": "b"}]}, is_strategic=False) == {
            "env": [{"name": "b"}]
        }

    def test_a_strategic_patch_merges_lists_by_key(self) -> None:
        current: Document = {"env": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]}
        patch: Document = {
            "$setElementOrder/env": [{"name": "c"}, {"name": "a"}],
            "env": [{"name": "a", "value": "9"}, {"name": "c"}, {"name": "b", "$patch": "delete"}],
        }
        assert merge(current, patch, is_strategic=True) == {
            "env": [{"name": "c"}, {"name": "a", "value": "9"}]
        }

    def test_other_lists_are_replaced(self) -> None:
        assert merge({"args": ["a"]}, {"args": ["b"]}, is_strategic=True) == {"args": ["b"]}

    def test_retained_keys(self) -> None:
        patch: Document = {"$retainKeys": ["type"], "type": "OnDelete"}
        assert merge({"type": "x", "rollingUpdate": {}}, patch, is_strategic=True) == {
            "type": "OnDelete"
        }


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


class TestProtobuf:
    def test_a_secret_of_helm_is_read(self) -> None:
        label = field(11, field(1, b"owner") + field(2, b"helm"))
        metadata = field(1, b"sh.helm.v1") + bytes([5 << 3, 1]) + label
        data = field(2, field(1, b"release") + field(2, b"H4sI"))
        secret = field(1, metadata) + data + field(3, b"helm.sh/release.v1")
        found = decode_secret(b"k8s\x00" + field(2, secret))
        assert found == {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "helm.sh/release.v1",
            "metadata": {"name": "sh.helm.v1", "labels": {"owner": "helm"}},
            "data": {"release": base64.b64encode(b"H4sI").decode()},
        }

    @pytest.mark.parametrize("body", [b"{}", b"k8s\x00", b"k8s\x00" + field(2, b"\x0b")])
    def test_anything_else_is_refused(self, body: bytes) -> None:
        with pytest.raises(ValueError, match=r"envelope|not a Secret|wire type"):
            decode_secret(body)


def an_object(name: str = "x", **fields: object) -> Document:
    return {"kind": "ConfigMap", "metadata": {"name": name}, **fields}  # type: ignore[dict-item]


@pytest.fixture
def store() -> ObjectStore:
    numbers = itertools.count(1)
    return ObjectStore(timestamp=lambda: "then", new_uid=lambda: f"u{next(numbers)}")


class TestStore:
    def test_a_name_is_taken_once(self, store: ObjectStore) -> None:
        assert store.create(an_object()).uid == "u1"
        with pytest.raises(ApiError, match="already exists"):
            store.create(an_object())

    def test_what_comes_out_is_a_copy(self, store: ObjectStore) -> None:
        store.create(an_object(data={"a": "1"})).raw["data"] = {}
        assert store.get("ConfigMap", "x").pairs("data") == {"a": "1"}

    def test_generation_counts_changes_of_the_spec_alone(self, store: ObjectStore) -> None:
        made = store.create(an_object(spec={"n": 1}))
        store.set_status("ConfigMap", "x", {"ok": True})
        assert store.get("ConfigMap", "x").number("metadata.generation") == 1
        changed = store.replace({**made.raw, "spec": {"n": 2}, "metadata": {"name": "x"}})
        assert changed.number("metadata.generation") == 2
        assert changed.at("status") == {"ok": True}
        assert changed.uid == "u1"

    def test_an_old_version_is_refused(self, store: ObjectStore) -> None:
        made = store.create(an_object())
        store.set_status("ConfigMap", "x", {"ok": True})
        with pytest.raises(ApiError, match="modified"):
            store.replace(made.raw)

    def test_what_changes_nothing_is_no_event(self, store: ObjectStore) -> None:
        made = store.create(an_object())
        before = store.version
        store.replace(made.raw)
        store.set_status("ConfigMap", "x", {"ok": True})
        store.set_status("ConfigMap", "x", {"ok": True})
        assert store.version == before + 1

    def test_history_is_kept_by_kind(self, store: ObjectStore) -> None:
        store.create(an_object())
        store.create({"kind": "Secret", "metadata": {"name": "s"}})
        store.remove("ConfigMap", "x")
        changes = [event.change for event in store.since(0, "ConfigMap")]
        assert changes == [Change.ADDED, Change.DELETED]
        assert store.since(store.version, "ConfigMap") == []

    def test_listeners_hear_of_changes(self, store: ObjectStore) -> None:
        heard: list[int] = []
        store.listeners.append(lambda: heard.append(store.version))
        store.create(an_object())
        store.remove("ConfigMap", "x")
        store.remove("ConfigMap", "x")
        assert heard == [1, 2]

    def test_a_shorter_grace_period_wins(self, store: ObjectStore) -> None:
        store.create({"kind": "Pod", "metadata": {"name": "p"}})
        for grace_s in (30, 5, 60):
            store.mark_terminating("Pod", "p", grace_s)
        found = store.get("Pod", "p")
        assert found.is_terminating
        assert found.number("metadata.deletionGracePeriodSeconds") == 5


def a_set(**spec: object) -> Document:
    fields: dict[str, object] = {
        "serviceName": "h",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {
            "metadata": {"labels": {"app": "db"}},
            "spec": {"containers": [{"name": "c"}]},
        },
    }
    return {"kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {**fields, **spec}}  # type: ignore[dict-item]


def admitted(document: Document) -> Manifest:
    return Manifest(admit_new(document, lambda: "10.96.0.9"))


class TestAdmission:
    def test_defaults_of_a_set(self) -> None:
        found = admitted(a_set())
        assert found.text("spec.podManagementPolicy") == "OrderedReady"
        assert found.number("spec.updateStrategy.rollingUpdate.partition", -1) == 0

    def test_a_service_gets_an_address_unless_it_wants_none(self) -> None:
        assert (
            admitted({"kind": "Service", "metadata": {"name": "s"}, "spec": {}}).text(
                "spec.clusterIP"
            )
            == "10.96.0.9"
        )
        headless: Document = {
            "kind": "Service",
            "metadata": {"name": "s"},
            "spec": {"clusterIP": "None"},
        }
        assert admitted(headless).text("spec.clusterIP") == "None"

    def test_plain_secrets_are_encoded(self) -> None:
        found = admitted({"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}})
        assert found.pairs("data") == {"a": base64.b64encode(b"b").decode()}
        assert not found.has("stringData")

    def test_a_selector_that_misses_its_own_pods_is_refused(self) -> None:
        with pytest.raises(ApiError, match="does not match template"):
            admitted(a_set(selector={"matchLabels": {"app": "web"}}))

    def test_a_mount_without_a_volume_is_refused(self) -> None:
        container = {"name": "c", "volumeMounts": [{"name": "gone", "mountPath": "/x"}]}
        template = {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [container]}}
        with pytest.raises(ApiError, match='no volume named "gone"'):
            admitted(a_set(template=template))
        claims = [{"metadata": {"name": "gone"}}]
        assert admitted(a_set(template=template, volumeClaimTemplates=claims))

    @pytest.mark.parametrize("name", ["Upper", "under_score", "-x", "x" * 254])
    def test_bad_names_are_refused(self, name: str) -> None:
        with pytest.raises(ApiError, match="DNS name"):
            admitted(an_object(name))

    def test_a_service_name_is_one_label(self) -> None:
        with pytest.raises(ApiError, match="63"):
            admitted({"kind": "Service", "metadata": {"name": "s" * 64}, "spec": {}})

    def test_only_some_fields_of_a_set_may_change(self) -> None:
        old = admitted(a_set())
        assert admit_change(a_set(replicas=5), old)
        with pytest.raises(ApiError, match="serviceName differs"):
            admit_change(a_set(serviceName="other"), old)

    def test_a_service_keeps_its_address(self) -> None:
        old = admitted({"kind": "Service", "metadata": {"name": "s"}, "spec": {}})
        kept = admit_change({"kind": "Service", "metadata": {"name": "s"}, "spec": {}}, old)
        assert Manifest(kept).text("spec.clusterIP") == "10.96.0.9"
        with pytest.raises(ApiError, match="immutable"):
            admit_change(
                {"kind": "Service", "metadata": {"name": "s"}, "spec": {"clusterIP": "None"}}, old
            )

    def test_what_is_immutable_stays(self) -> None:
        old = Manifest(an_object(immutable=True, data={"a": "1"}))
        with pytest.raises(ApiError, match="immutable"):
            admit_change(an_object(immutable=True, data={"a": "2"}), old)

    def test_a_claim_does_not_shrink(self) -> None:
        def claim(size: str) -> Document:
            return {
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "c"},
                "spec": {"resources": {"requests": {"storage": size}}},
            }

        assert admit_change(claim("2Gi"), Manifest(claim("1Gi")))
        with pytest.raises(ApiError, match="less than"):
            admit_change(claim("512Mi"), Manifest(claim("1Gi")))

    def test_a_job_says_what_happens_at_its_end(self) -> None:
        with pytest.raises(ApiError, match="restartPolicy"):
            admitted({"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": {}}}})


class TestRequests:
    @pytest.mark.parametrize(
        ("path", "kind", "name", "part"),
        [
            ("/api/v1/namespaces/default/pods", "Pod", "", ""),
            ("/api/v1/namespaces/default/pods/p/log", "Pod", "p", "log"),
            ("/apis/apps/v1/namespaces/default/statefulsets/s", "StatefulSet", "s", ""),
            ("/api/v1/namespaces/default", "Namespace", "default", ""),
        ],
    )
    def test_paths(self, path: str, kind: str, name: str, part: str) -> None:
        target = parse_target(path)
        assert (target.resource.kind, target.name, target.part) == (kind, name, part)

    @pytest.mark.parametrize(
        "path", ["/", "/api/v1/namespaces/other/pods", "/apis/x/v1/y", "/api/v1/pods/a/b/c"]
    )
    def test_other_paths_are_not_found(self, path: str) -> None:
        with pytest.raises(ApiError) as caught:
            parse_target(path)
        assert caught.value.code == 404

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b"k8s\x00junk"])
    def test_unreadable_bodies_are_refused(self, body: bytes) -> None:
        with pytest.raises(ApiError) as caught:
            read_body(body)
        assert caught.value.code == 400
