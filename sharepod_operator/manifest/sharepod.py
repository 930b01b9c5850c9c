"""From a SharePod object to its record, with one sentence for everything in it that can't be honoured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.quantity import shown
from sharepod_operator.core.replicas import wanted_replicas
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import integer, mapping, mappings, string_pairs, text, version
from sharepod_operator.manifest.constraints import unsupported
from sharepod_operator.manifest.crd_spec import MAX_NAME, MAX_REPLICAS
from sharepod_operator.manifest.gpu_fields import read_gpu
from sharepod_operator.manifest.packed import PackedJson
from sharepod_operator.manifest.records import Json, SharePodRecord
from sharepod_operator.manifest.render import pod_labels, template_hash
from sharepod_operator.manifest.resources import effective_request
from sharepod_operator.manifest.selector import matches

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

SCHEDULERS = frozenset({names.SCHEDULER_NAME})


def read_sharepod(obj: Json, schedulers: AbstractSet[str] = SCHEDULERS) -> SharePodRecord:
    """The record of a SharePod. Never raises: what is wrong stands in `invalid`, field by field.

    `schedulers` are the values of podSpec.schedulerName that this operator serves.
    """
    body = mapping(obj)
    metadata, spec = mapping(body.get("metadata")), mapping(body.get("spec"))
    problems: list[str] = []
    name = text(metadata.get("name"))
    labels, annotations = string_pairs(metadata.get("labels")), string_pairs(metadata.get("annotations"))
    if len(name) > MAX_NAME:
        problems.append(f"metadata.name has {len(name)} characters; it must have at most {MAX_NAME}")
    replicas = _whole(spec, "replicas", 1, MAX_REPLICAS, problems)
    pod_spec = _pod_spec(spec, schedulers, problems)
    gpu, source = read_gpu(spec, dict(annotations), problems)
    selector = _selector(spec, name, dict(labels), problems)
    status = mapping(body.get("status"))
    record = SharePodRecord(
        uid=text(metadata.get("uid")),
        namespace=text(metadata.get("namespace")),
        name=name,
        version=version(metadata),
        generation=integer(metadata.get("generation")),
        created=text(metadata.get("creationTimestamp")),
        deleting=bool(metadata.get("deletionTimestamp")),
        replicas=replicas,
        wanted=_wanted(replicas, dict(labels), problems),
        min_ready_seconds=_whole(spec, "minReadySeconds", 0, None, problems),
        pod_spec=PackedJson.of(pod_spec),
        labels=labels,
        annotations=annotations,
        selector=selector,
        gpu=gpu,
        gpu_source=source,
        invalid=tuple(problems),
        status=PackedJson.of(status),
        ready_reason=_ready_reason(status),
    )
    return replace(record, template_hash=template_hash(record))


def with_new_status(known: SharePodRecord, obj: Json) -> SharePodRecord | None:
    """The record where nothing but the status is new, which is most often so; None where it must be read.

    The API server raises the generation with every change of the spec.
    """
    metadata = obj["metadata"]
    if (
        not known.generation
        or known.generation != metadata.get("generation")
        or known.deleting != bool(metadata.get("deletionTimestamp"))
        or known.labels != string_pairs(metadata.get("labels"))
        or known.annotations != string_pairs(metadata.get("annotations"))
    ):
        return None
    status = mapping(obj.get("status"))
    return replace(known, version=version(metadata), status=PackedJson.of(status), ready_reason=_ready_reason(status))


def _ready_reason(status: Json) -> str:
    conditions = mappings(status.get("conditions"))
    return next((text(found.get("reason")) for found in conditions if found.get("type") == "Ready"), "")


def _whole(spec: Json, field: str, default: int, most: int | None, problems: list[str]) -> int:
    value = spec.get(field)
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0 and (most is None or value <= most):
        return value
    bounds = "of at least 0" if most is None else f"from 0 to {most}"
    problems.append(f"spec.{field} is {shown(value)}; it must be an integer {bounds}")
    return default


def _wanted(replicas: int, labels: dict[str, str], problems: list[str]) -> int:
    """The replicas raised to OpenFaaS' floor; a SharePod scaled to 0 stays there, since an idle function may.

    The original ignores a floor that it can't read; a person who wrote one wants to hear that it isn't kept.
    """
    written = labels.get(names.LABEL_MIN_REPLICAS, "").strip()
    if not written:
        return replicas
    if not (written.isascii() and written.isdigit()):
        problems.append(f"label {names.LABEL_MIN_REPLICAS} is {shown(written)}; it must be an integer of at least 1")
        return replicas
    floor = MAX_REPLICAS if len(written) > 9 else min(int(written), MAX_REPLICAS)
    return wanted_replicas(replicas, floor)


def _pod_spec(spec: Json, schedulers: AbstractSet[str], problems: list[str]) -> Json:
    written = spec.get("podSpec")
    if not isinstance(written, dict):
        problems.append(f"spec.podSpec is {shown(written)}; it must be a pod's spec with at least one container")
        return {}
    containers = written.get("containers")
    if not isinstance(containers, list) or not containers or not all(isinstance(item, dict) for item in containers):
        problems.append("spec.podSpec.containers must be a list of at least one container")
    node = written.get("nodeName", "")
    if not isinstance(node, str):
        problems.append(f"spec.podSpec.nodeName is {shown(node)}; it must be the name of a node")
    scheduler = written.get("schedulerName")
    if scheduler not in (None, "") and (not isinstance(scheduler, str) or scheduler not in schedulers):
        served = " or ".join(sorted(schedulers))
        problems.append(f"spec.podSpec.schedulerName is {shown(scheduler)}; leave it out, or write {served}")
    effective_request(written, problems, "spec.podSpec")
    problems.extend(f"spec.podSpec: {_refusal(name)}" for name in unsupported(written))
    return written


def _refusal(name: str) -> str:
    if name.startswith(f"resource {names.KOORDINATOR_PREFIX}"):
        known = ", ".join(key.removeprefix(names.KOORDINATOR_PREFIX) for key in names.KOORDINATOR_RESOURCES)
        return f"{name} isn't read; of {names.KOORDINATOR_PREFIX} these are: {known}"
    if name.startswith(f"resource {names.NVIDIA_GPU}"):
        return f"{name} takes whole GPUs away from sharing; write the request as spec.gpu"
    return f"{name} isn't implemented by this scheduler; remove it"


def _selector(spec: Json, name: str, labels: dict[str, str], problems: list[str]) -> Json | None:
    selector: Any = spec.get("selector")
    if selector is None:
        return None
    if not isinstance(selector, dict):
        problems.append(f"spec.selector is {shown(selector)}; it must be a label selector")
        return None
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        problems.append("spec.selector is empty and would take every pod; leave it out, or give it matchLabels")
    elif not matches(selector, pod_labels(name, labels)):
        problems.append(
            f"spec.selector does not match the labels of the pods; leave it out, or select {names.LABEL_SHAREPOD}: {name}"
        )
    return selector
