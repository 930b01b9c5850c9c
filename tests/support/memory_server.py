"""An API server in memory: objects, one counter of versions, watch history, deletion and garbage collection.

Behaviour is that of kube-apiserver as far as the operator can notice it. Nothing happens by itself but garbage
collection: time moves with `advance`, kubelets act with `run_pods` and `finish_deletions`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sharepod_operator.kube.api import NODES, PODS, Json, Listing, Resource
from sharepod_operator.kube.errors import AlreadyExists, Conflict, Gone, NotFound
from tests.support import memory_rules as rules
from tests.support.memory_patch import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sharepod_operator.kube.errors import ApiError

Key = tuple[str, str]
"""Namespace (empty for cluster objects) and name."""


@dataclass(slots=True)
class ManualClock:
    """Wall time that moves only when a test moves it."""

    time: datetime = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the watch history; `before` is the object's earlier form."""

    version: int
    resource: Resource
    type: str
    object: Json
    before: Json | None = None


Stream = asyncio.Queue["Change | ApiError | None"]
"""What an open watch will see: changes, at last the error it breaks with, or None for a clean end."""


@dataclass(frozen=True, slots=True)
class Write:
    """A write that reached the server, in the order of arrival. `outcome` is `ok` or the name of the error."""

    client: str
    verb: str
    resource: Resource
    subresource: str | None
    namespace: str
    name: str
    outcome: str = "ok"

    def __str__(self) -> str:
        below = f"/{self.subresource}" if self.subresource else ""
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.verb} {self.resource}{below} {where}: {self.outcome}"


@dataclass(slots=True)
class MemoryServer:
    """The state; operators and tests talk to it through a `MemoryApi` each, tests also directly."""

    clock: ManualClock = field(default_factory=ManualClock)
    garbage_collection: bool = True
    """Off: dependents stay until `collect_garbage` is called, as when the controller-manager is behind."""
    admission: list[Callable[[str, Resource, Json], ApiError | None]] = field(default_factory=list)
    """Extra checks of a test: verb, resource and object; an error refuses the write."""
    writes: list[Write] = field(default_factory=list)
    version: int = 1000
    compacted: int = 0
    history: list[Change] = field(default_factory=list)
    _objects: dict[Resource, dict[Key, Json]] = field(default_factory=dict)
    _uids: int = 0
    _streams: set[Stream] = field(default_factory=set)

    # What a test reads

    def find(self, resource: Resource, name: str, namespace: str | None = None) -> Json | None:
        """A copy of the object, or None."""
        there = self._objects.get(resource, {}).get(_key(resource, namespace, name))
        return None if there is None else _copy(there)

    def objects(self, resource: Resource, namespace: str | None = None) -> list[Json]:
        """Copies of all objects, by namespace and name."""
        return [_copy(body) for key, body in self._sorted(resource) if namespace is None or key[0] == namespace]

    def pods(self, namespace: str | None = None) -> dict[str, Json]:
        """Pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self.objects(PODS, namespace)}

    # What a test does in place of users, kubelets and controllers

    def put(self, resource: Resource, body: Json) -> Json:
        """Creates the object, status included, or replaces it when it is there: no rule of a subresource applies."""
        body = _copy(body)
        metadata = body.setdefault("metadata", {})
        before = self._objects.get(resource, {}).get(_key(resource, metadata.get("namespace"), metadata["name"]))
        if before is None:
            status = body.get("status")
            created = self.create(resource, body, metadata.get("namespace"))
            if status is None or created.get("status") == status:
                return created
            return self.put(resource, {**created, "status": status})
        kept = {
            key: before["metadata"][key]
            for key in ("uid", "creationTimestamp", "generation")
            if key in before["metadata"]
        }
        after = {**body, "metadata": {**metadata, **kept}}
        if after.get("spec") != before.get("spec") and "generation" in kept:
            after["metadata"]["generation"] += 1
        return self.commit(resource, before, after)

    def remove(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        """The object is gone at once, whatever its finalizers and grace period say."""
        self._drop(resource, self._existing(resource, name, namespace))

    def set_phase(self, name: str, phase: str, namespace: str = "default", **status: Any) -> Json:
        """What a kubelet reports of a Pod."""
        pod = self._existing(PODS, name, namespace)
        ready = "True" if phase == "Running" else "False"
        conditions = [c for c in pod["status"].get("conditions", []) if c["type"] != "Ready"]
        conditions.append({"type": "Ready", "status": ready, "lastTransitionTime": stamp(self.clock())})
        return self.commit(
            PODS, pod, {**pod, "status": {**pod["status"], "phase": phase, "conditions": conditions, **status}}
        )

    def run_pods(self) -> list[str]:
        """Every bound, pending Pod on a known node becomes Running and Ready; returns their names."""
        ran = []
        for (namespace, name), pod in self._sorted(PODS):
            bound = pod["spec"].get("nodeName")
            if bound and pod["status"]["phase"] == "Pending" and ("", bound) in self._objects.get(NODES, {}):
                self.set_phase(name, "Running", namespace)
                ran.append(name)
        return ran

    def advance(self, seconds: float) -> list[str]:
        """Moves the clock and removes the Pods whose grace period is over; returns their names."""
        self.clock.advance(seconds)
        now = stamp(self.clock())
        return self._finish(lambda pod: pod["metadata"]["deletionTimestamp"] <= now)

    def finish_deletions(self) -> list[str]:
        """Every terminating Pod ends now, as if its containers had stopped; returns their names."""
        return self._finish(lambda _: True)

    def collect_garbage(self) -> None:
        """Deletes, in the background, whatever has owners of a known kind of which none exists any more."""
        uids = {body["metadata"]["uid"] for kind in self._objects.values() for body in kind.values()}
        for resource in list(self._objects):
            for (namespace, name), body in self._sorted(resource):
                owners = body["metadata"].get("ownerReferences") or []
                known = all((owner["apiVersion"], owner["kind"]) in rules.BY_KIND for owner in owners)
                if owners and known and not any(owner["uid"] in uids for owner in owners):
                    self.delete(resource, name, namespace or None)

    # The verbs, without faults

    def create(self, resource: Resource, body: Json, namespace: str | None, *, dry_run: bool = False) -> Json:
        body = _copy(body)
        metadata = body.setdefault("metadata", {})
        if resource.namespaced:
            metadata.setdefault("namespace", namespace or "default")
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{self._uids:05x}"
        key = _key(resource, metadata.get("namespace"), metadata["name"])
        for set_by_server in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            metadata.pop(set_by_server, None)
        rules.admit_create(resource, body, self.find)
        self._admit("create", resource, body)
        if key in self._objects.get(resource, {}):
            raise AlreadyExists(
                f'{resource} "{key[1]}" already exists', status=409, reason="AlreadyExists", details={"name": key[1]}
            )
        body.setdefault("apiVersion", resource.api_version)
        body.setdefault("kind", resource.kind)
        self._uids += 1
        metadata["uid"] = f"00000000-0000-4000-8000-{self._uids:012d}"
        metadata["creationTimestamp"] = stamp(self.clock())
        if dry_run:
            return body
        self._record(resource, "ADDED", body, None)
        if self.garbage_collection and metadata.get("ownerReferences"):
            self.collect_garbage()
        return _copy(body)

    def change(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        make: Callable[[Json], Json],
        *,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Json:
        """An update or patch: `make` turns the object as it is into the one wanted."""
        before = self._existing(resource, name, namespace)
        after = make(_copy(before))
        wanted = after["metadata"].get("resourceVersion")
        if wanted is not None and wanted != before["metadata"]["resourceVersion"]:
            raise Conflict(
                f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again",
                status=409,
                reason="Conflict",
                details={"name": name},
            )
        after = rules.admit_change(resource, before, after, subresource)
        self._admit("update", resource, after)
        return _copy({**after}) if dry_run else self.commit(resource, before, after)

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        *,
        preconditions: Mapping[str, str | None] | None = None,
        grace_period_seconds: int | None = None,
    ) -> Json:
        before = self._existing(resource, name, namespace)
        for precondition, value in (preconditions or {}).items():
            actual = before["metadata"][precondition]
            if value is not None and value != actual:
                raise Conflict(
                    f'Operation cannot be fulfilled on {resource} "{name}": the {precondition} in the precondition '
                    f"({value}) does not match the {precondition} in record ({actual}). The object might have been deleted "
                    "and then recreated",
                    status=409,
                    reason="Conflict",
                )
        self._admit("delete", resource, before)
        grace = _grace(before, grace_period_seconds) if resource == PODS else 0
        finalizers = before["metadata"].get("finalizers")
        if resource == PODS or finalizers:  # two versions: marked, and then gone if nothing holds it
            marked = self._mark_deleted(resource, before, grace)
            return marked if grace or finalizers else self._drop(resource, marked)
        self._drop(resource, before)
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {"name": name, "kind": resource.plural, "uid": before["metadata"]["uid"]},
        }

    def bind(self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """`POST pods/binding`: node, annotations, PodScheduled and the end of a nomination in one write."""
        pod = self._existing(PODS, name, namespace)
        spec, metadata, status = pod["spec"], pod["metadata"], pod["status"]
        problem = None
        if uid != metadata["uid"]:
            problem = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
        elif "deletionTimestamp" in metadata:
            problem = f"pod {name} is being deleted, cannot be assigned to a host"
        elif spec.get("nodeName"):
            problem = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        elif spec.get("schedulingGates"):
            problem = f"pod {name} has non-empty .spec.schedulingGates"
        if problem:
            raise Conflict(
                f'Operation cannot be fulfilled on pods/binding "{name}": {problem}', status=409, reason="Conflict"
            )
        self._admit("bind", PODS, pod)
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(self.clock())}
        conditions = [c for c in status.get("conditions", []) if c["type"] != "PodScheduled"]
        after = {
            **pod,
            "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}},
            "spec": {**spec, "nodeName": node},
            "status": {key: value for key, value in status.items() if key != "nominatedNodeName"}
            | {"conditions": [*conditions, scheduled]},
        }
        self.commit(PODS, pod, after)

    def listing(
        self, resource: Resource, namespace: str | None, label_selector: str | None, field_selector: str | None
    ) -> Listing:
        items = [
            _copy(body)
            for key, body in self._sorted(resource)
            if selected(body, namespace, label_selector, field_selector)
        ]
        return Listing(items, str(self.version))

    def commit(self, resource: Resource, before: Json, after: Json) -> Json:
        """Stores a new form of an object. One that equals the old is no write: no new version, no event."""
        metadata = {key: value for key, value in after["metadata"].items() if key != "resourceVersion"}
        after = {**after, "metadata": {**metadata, "resourceVersion": before["metadata"]["resourceVersion"]}}
        if after == before:
            return _copy(before)
        if (
            "deletionTimestamp" in metadata
            and not metadata.get("finalizers")
            and not metadata.get("deletionGracePeriodSeconds")
        ):
            return self._drop(resource, after)
        return self._record(resource, "MODIFIED", after, before)

    # Watches

    def compact(self) -> None:
        """Forgets the history: a watch that asks for an older version than now gets 410."""
        self.compacted = self.version
        self.history.clear()

    def bookmark(self) -> None:
        """Every open watch is told the current version."""
        for stream in self._streams:
            stream.put_nowait(Change(self.version, PODS, "BOOKMARK", {}))

    def subscribe(self, version: int) -> Stream:
        """A stream of everything after the version; raises `Gone` when that part of the history was compacted."""
        if version < self.compacted:
            raise Gone(f"too old resource version: {version} ({self.compacted})", status=410, reason="Expired")
        stream: Stream = asyncio.Queue()
        for change in self.history:
            if change.version > version:
                stream.put_nowait(change)
        self._streams.add(stream)
        return stream

    def unsubscribe(self, stream: Stream) -> None:
        self._streams.discard(stream)

    # Inside

    def _existing(self, resource: Resource, name: str, namespace: str | None) -> Json:
        there = self._objects.get(resource, {}).get(_key(resource, namespace, name))
        if there is None:
            raise NotFound(f'{resource} "{name}" not found', status=404, reason="NotFound", details={"name": name})
        return there

    def _sorted(self, resource: Resource) -> list[tuple[Key, Json]]:
        return sorted(self._objects.get(resource, {}).items())

    def _admit(self, verb: str, resource: Resource, body: Json) -> None:
        for check in self.admission:
            error = check(verb, resource, body)
            if error is not None:
                raise error

    def _record(self, resource: Resource, kind: str, body: Json, before: Json | None) -> Json:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        key = _key(resource, body["metadata"].get("namespace"), body["metadata"]["name"])
        if kind == "DELETED":
            self._objects[resource].pop(key, None)
        else:
            self._objects.setdefault(resource, {})[key] = body
        change = Change(self.version, resource, kind, _copy(body), before)
        self.history.append(change)
        for stream in self._streams:
            stream.put_nowait(change)
        return _copy(body)

    def _mark_deleted(self, resource: Resource, before: Json, grace: int) -> Json:
        metadata = before["metadata"]
        if metadata.get("deletionGracePeriodSeconds", grace + 1) <= grace:
            return _copy(before)  # a second DELETE may only shorten the first one's grace
        marked = {
            **metadata,
            "deletionTimestamp": stamp(self.clock() + timedelta(seconds=grace)),
            "deletionGracePeriodSeconds": grace,
        }
        if "deletionTimestamp" not in metadata and "generation" in metadata:
            marked["generation"] += 1
        return self._record(resource, "MODIFIED", {**before, "metadata": marked}, before)

    def _drop(self, resource: Resource, before: Json) -> Json:
        gone = self._record(resource, "DELETED", {**before, "metadata": {**before["metadata"]}}, before)
        if self.garbage_collection:
            self.collect_garbage()
        return gone

    def _finish(self, due: Callable[[Json], bool]) -> list[str]:
        ended = []
        for (_, name), pod in self._sorted(PODS):
            if "deletionTimestamp" in pod["metadata"] and not pod["metadata"].get("finalizers") and due(pod):
                self._drop(PODS, self._mark_deleted(PODS, pod, 0))
                ended.append(name)
        return ended


def stamp(time: datetime) -> str:
    """metav1.Time: seconds, with a Z."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def selected(body: Json, namespace: str | None, label_selector: str | None, field_selector: str | None) -> bool:
    """Whether a list or watch with these selectors shows the object."""
    return (
        (namespace is None or body["metadata"].get("namespace") == namespace)
        and rules.matches_labels(label_selector, body)
        and rules.matches_fields(field_selector, body)
    )


def _key(resource: Resource, namespace: str | None, name: str) -> Key:
    return ((namespace or "default") if resource.namespaced else "", name)


def _copy(body: Json) -> Json:
    made: Json = copied(body)
    return made


def _grace(pod: Json, asked: int | None) -> int:
    """Seconds a Pod gets to end: none when it never ran or has ended already."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in rules.FINAL_PHASES:
        return 0
    own: int = pod["spec"]["terminationGracePeriodSeconds"]
    return own if asked is None else asked
