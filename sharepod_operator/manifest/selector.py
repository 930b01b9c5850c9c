"""Label selectors, as Kubernetes reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping, mappings, text, texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod_operator.manifest.records import Json


def matches(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether a label selector (matchLabels and matchExpressions) takes these labels. An empty one takes all."""
    wanted = mapping(selector.get("matchLabels"))
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_holds(expression, labels) for expression in mappings(selector.get("matchExpressions")))


def selector_string(selector: Json | None, sharepod: str) -> str:
    """The selector as one string, for the scale subresource; the SharePod's own label where none is given."""
    if selector is None:
        return f"{names.LABEL_SHAREPOD}={sharepod}"
    parts = [f"{key}={value}" for key, value in sorted(mapping(selector.get("matchLabels")).items())]
    for expression in mappings(selector.get("matchExpressions")):
        key, values = text(expression.get("key")), ",".join(sorted(texts(expression.get("values"))))
        match expression.get("operator"):
            case "In":
                parts.append(f"{key} in ({values})")
            case "NotIn":
                parts.append(f"{key} notin ({values})")
            case "Exists":
                parts.append(key)
            case "DoesNotExist":
                parts.append(f"!{key}")
    return ",".join(parts)


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    key = text(expression.get("key"))
    values = texts(expression.get("values"))
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
