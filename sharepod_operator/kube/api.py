"""What the rest of the operator may ask of an API server, and how resources are addressed.

The gateway implements this over HTTP; the tests' in-memory API server implements it too, so that everything above is
tested without a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sharepod_operator.manifest import names

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource type: API group (empty for the core group), version, plural, kind, and whether it has namespaces."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        """As `kubectl` writes it: `pods`, `sharepods.faasshare.tum`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
PDBS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
SHAREPODS = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)


class Patch(StrEnum):
    """Content types of PATCH. Custom resources answer 415 to STRATEGIC; MERGE replaces lists as a whole."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


LIST_PAGE = 500
"""Objects of one page of a list that may be long, as in client-go's pager."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One consistent list: the objects and the resourceVersion from which a watch goes on."""

    items: Sequence[Json]
    resource_version: str


class WatchEvent(NamedTuple):
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK; errors of the stream are raised, not yielded."""

    type: str
    object: Json


class Api(Protocol):
    """The verbs that the operator uses; every method may raise the errors of `kube.errors`.

    Writes raise `NotLeading` before anything is sent when this process does not lead, `UnknownOutcome` when the write
    may or may not have happened, and otherwise only definite refusals. Objects are plain JSON and belong to the caller.
    """

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json:
        """The object as it is now, by a quorum read."""
        ...

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,
    ) -> Listing:
        """All objects, of one namespace or of all, from a consistent read; `limit` fetches them in pages of that size."""
        ...

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """What changed after `resource_version`, bookmarks included; ends when the server closes the stream.

        Raises:
            Gone: the version is too old; list again.
            Unreachable: the stream broke, or stayed silent for too long.
        """
        ...

    async def create(
        self,
        resource: Resource,
        body: Json,
        *,
        namespace: str | None = None,
        strict: bool = False,
        dry_run: bool = False,
    ) -> Json:
        """POST; `strict` refuses unknown and double fields (fieldValidation=Strict)."""
        ...

    async def update(self, resource: Resource, name: str, body: Json, *, namespace: str | None = None) -> Json:
        """PUT of the whole object; its `metadata.resourceVersion` is the precondition."""
        ...

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Json | Sequence[Json],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content: Patch = Patch.MERGE,
        strict: bool = False,
        dry_run: bool = False,
    ) -> Json:
        """PATCH; in a merge body `metadata.resourceVersion` is a precondition (Conflict) and so is `metadata.uid` (Invalid)."""
        ...

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str | None,
        namespace: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> Json:
        """DELETE of exactly the object with this uid (None: whatever has the name); background propagation.

        The answer for a Pod is the Pod with its deletionTimestamp; `deletionGracePeriodSeconds: 0` without finalizers
        means that it is gone already. For most other resources it is a Status.
        """
        ...

    async def create_binding(
        self, namespace: str, name: str, *, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """Binds the Pod with this uid to the node and merges the annotations, in one write.

        Raises:
            Conflict: another uid, already bound, being deleted, or gated; never force it.
        """
        ...
