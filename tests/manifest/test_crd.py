"""The committed CRD: what the generator prints, described in full, with a bound on everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sharepod_operator.manifest.crd import custom_resource_definition, render

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
COMMITTED = Path(__file__).parents[2] / "crds" / "sharepods.yaml"


def schemas(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every schema within a schema, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from schemas(schema[key], f"{path}[]")


def version() -> Json:
    (only,) = custom_resource_definition()["spec"]["versions"]
    return dict(only)


def root() -> Json:
    return dict(version()["schema"]["openAPIV3Schema"])


def test_committed_file_is_what_the_generator_prints() -> None:
    """Whoever changes the generator commits its output: `python -m sharepod_operator.manifest.crd`."""
    assert render() == COMMITTED.read_text(encoding="utf-8")
    assert custom_resource_definition() == yaml.safe_load(render())


def test_every_field_is_described() -> None:
    """`kubectl explain` has a sentence for each field; metadata's the API server has itself."""
    silent = [path for path, schema in schemas(root()) if not schema.get("description")]
    assert [".metadata", ".metadata.name"] == silent


def test_every_string_list_and_map_is_bounded() -> None:
    """The API server weighs the cost of rules by these bounds; a closed set or a format bounds as well."""
    bounds = {
        "string": ("maxLength", "enum", "format"),
        "array": ("maxItems",),
        "object": ("properties", "maxProperties"),
    }
    open_ended = [
        path
        for path, schema in schemas(root())
        if not any(bound in schema for bound in bounds.get(schema.get("type", ""), ("type", "maxLength")))
    ]
    assert [".apiVersion", ".kind", ".metadata.name"] == open_ended


def test_amounts_have_no_defaults() -> None:
    """A default in the schema would fill a field before the annotation could; replicas needs one for `kubectl scale`."""
    defaults = {path: schema["default"] for path, schema in schemas(root()) if "default" in schema}
    assert {".spec.replicas": 1, ".spec.minReadySeconds": 0} == defaults


def test_lists_and_maps_of_the_status_are_atomic() -> None:
    """Else managedFields would grow with every replica."""
    status = root()["properties"]["status"]["properties"]
    kinds = {
        name: schema.get("x-kubernetes-list-type") or schema.get("x-kubernetes-map-type")
        for name, schema in status.items()
        if schema["type"] == "array" or "additionalProperties" in schema
    }
    assert {
        "conditions": "map",
        "placements": "atomic",
        "boundDeviceIDs": "atomic",
        "podManagerPort": "atomic",
        "usage": "atomic",
        "pod2node": "atomic",
        "node2Id": "atomic",
        "prewarmPool": "atomic",
    } == kinds


def test_columns_and_subresources() -> None:
    """What `kubectl get` and `kubectl scale` work with."""
    only = version()
    columns = [(column["name"].upper(), column["priority"]) for column in only["additionalPrinterColumns"]]
    narrow = ["DESIRED", "READY", "GPU", "MEM", "STATUS", "PLACEMENT", "AGE"]
    assert [*((name, 0) for name in narrow), ("PRIORITY", 1), ("PORTS", 1), ("MESSAGE", 1)] == columns
    assert {"status", "scale"} == set(only["subresources"])
