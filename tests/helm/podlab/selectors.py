"""Label selectors: the three written forms, one rule."""

from collections.abc import Mapping

from tests.helm.podlab.manifest import Manifest


def selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Whether a selector (``matchLabels`` and ``matchExpressions``) takes these labels; an empty one takes all."""
    return is_subset(selector.pairs("matchLabels"), labels) and all(
        _holds(rule, labels) for rule in selector.parts("matchExpressions")
    )


def is_subset(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether the labels include all wanted ones: a service's selector. NB: an empty one takes all here too."""
    return all(labels.get(name) == value for name, value in wanted.items())


def parse_query(text: str) -> dict[str, str]:
    """A ``labelSelector`` or ``fieldSelector`` of a list call: ``a=b,c=d`` (``==`` too).

    Raises:
        ValueError: A form that helm does not use.
    """
    wanted = {}
    for term in filter(None, text.split(",")):
        name, equals, value = term.partition("=")
        if not equals or name.endswith("!") or " in " in name:
            raise ValueError(f"only equality is known, not {term!r}")
        wanted[name] = value.removeprefix("=")
    return wanted


def _holds(rule: Manifest, labels: Mapping[str, str]) -> bool:
    value = labels.get(rule.text("key"))
    match rule.text("operator"):
        case "In":
            return value in rule.texts("values")
        case "NotIn":
            return value not in rule.texts("values")
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case other:
            raise ValueError(f"no such operator: {other!r}")
