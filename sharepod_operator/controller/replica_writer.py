"""Makes and deletes the Pods of replicas, so that doing it twice does it once.

A Pod's name follows from the SharePod's uid, the ordinal and the incarnation. A create that is repeated after a crash, or
after an answer that got lost, therefore ends in AlreadyExists; one GET then tells whose pod it is. Everything that the
API server answers goes into the cache before anything else is decided.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from sharepod_operator.controller.view import replica_annotation, slot_of
from sharepod_operator.core.status import Reason, Refused, one_line
from sharepod_operator.kube import errors
from sharepod_operator.kube.api import PODS
from sharepod_operator.manifest.pod import read_pod
from sharepod_operator.manifest.render import render_pod, replica_name

if TYPE_CHECKING:
    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.controller.announcer import Announcer
    from sharepod_operator.core.replicas import Slot
    from sharepod_operator.kube.api import Api, Json
    from sharepod_operator.manifest.records import PodRecord, SharePodRecord
    from sharepod_operator.manifest.render import Rendering

NAMES_TRIED = 8
"""Names that one create goes through when foreign pods have taken them, before it fails and is repeated later."""

_PREFIX = re.compile(r'(?:Pod|pods) "[^"]*" is (?:invalid|forbidden): |.*strict decoding error: ', re.DOTALL)


class ReplicaWriter:
    """The only place that creates and deletes Pods of SharePods."""

    def __init__(self, cache: Cache, api: Api, announcer: Announcer, rendering: Rendering) -> None:
        self._cache = cache
        self._api = api
        self._announcer = announcer
        self._rendering = rendering

    async def create(self, sharepod: SharePodRecord, slot: Slot) -> None:
        """Create the slot's Pod, or find that an earlier create of ours did; then plan again from the cache.

        Where a foreign pod has the name, the next incarnation's name is taken.

        Raises:
            ApiError: the API server refused, or the outcome is unknown: then the same name is to be tried again.
        """
        for incarnation in range(slot.incarnation, slot.incarnation + NAMES_TRIED):
            attempt = replace(slot, incarnation=incarnation)
            pod = self._render(sharepod, attempt)
            try:
                created = await self._api.create(PODS, pod, namespace=sharepod.namespace, strict=True)
            except errors.AlreadyExists as error:
                if await self._is_ours(sharepod, attempt, pod["metadata"]["name"]):
                    return
                taken = error
            else:
                self._cache.observe_pod(created)
                return
        raise taken

    async def validate(self, sharepod: SharePodRecord, slot: Slot) -> None:
        """Ask the API server whether it would take a Pod of this template, without creating one.

        Raises:
            ApiError: it would not, or it did not say.
        """
        pod = self._render(sharepod, slot)
        try:
            await self._api.create(PODS, pod, namespace=sharepod.namespace, strict=True, dry_run=True)
        except errors.AlreadyExists:
            return  # the name is compared last, after validation and admission

    async def delete(self, pod: PodRecord) -> None:
        """Delete exactly this Pod; that it is gone already is fine.

        Raises:
            ApiError: it may still be there.
        """
        try:
            left = await self._api.delete(PODS, pod.name, uid=pod.uid, namespace=pod.namespace)
        except errors.NotFound:
            self._cache.forget_pod(pod.uid)
        except errors.Conflict:
            if await self._is_there(pod):
                raise
            self._cache.forget_pod(pod.uid)
        else:
            self._cache.observe_deletion(pod.uid, left)

    def _render(self, sharepod: SharePodRecord, slot: Slot) -> Json:
        name = replica_name(sharepod.name, sharepod.uid, slot.ordinal, slot.incarnation)
        return render_pod(sharepod, name, self._rendering, replica=replica_annotation(slot))

    async def _is_ours(self, sharepod: SharePodRecord, slot: Slot, name: str) -> bool:
        """Whether the Pod of this name serves this very slot, in whatever state; the cache knows it afterwards."""
        try:
            found = await self._api.get(PODS, name, namespace=sharepod.namespace)
        except errors.NotFound:
            return True  # gone meanwhile: the next plan tries the same name again
        self._cache.observe_pod(found)
        pod = read_pod(found)
        if pod.owner is None or pod.owner.uid != sharepod.uid:
            self._announcer.name_taken(sharepod, name)
            return False
        there = slot_of(pod)
        return there is not None and (there.ordinal, there.incarnation) == (slot.ordinal, slot.incarnation)

    async def _is_there(self, pod: PodRecord) -> bool:
        try:
            found = await self._api.get(PODS, pod.name, namespace=pod.namespace)
        except errors.NotFound:
            return False
        self._cache.observe_pod(found)
        return bool(found["metadata"]["uid"] == pod.uid)


def refusal_of(error: errors.ApiError) -> Refused | None:
    """What a failed create says about the SharePod; None where it says nothing and is only to be repeated."""
    causes = "; ".join(error.field_causes)
    text = one_line("Pod refused by the API server: " + (causes or _PREFIX.sub("", error.message, count=1)))
    match error:
        case errors.Invalid():
            return Refused(Reason.INVALID_POD_SPEC, text, event="InvalidSpec")
        case errors.Forbidden() if "no PriorityClass with name" in error.message:
            return Refused(Reason.UNKNOWN_PRIORITY_CLASS, text, event="InvalidSpec")
        case errors.Forbidden():
            return Refused(Reason.UNSCHEDULABLE, text, event="FailedCreate")
    return None


def trouble_of(error: errors.ApiError) -> Refused:
    """How a failure that keeps coming back is shown: nothing says that the SharePod is at fault."""
    return Refused(Reason.UNSCHEDULABLE, one_line(f"Pods can't be created: {error.message}"), event="FailedCreate")
