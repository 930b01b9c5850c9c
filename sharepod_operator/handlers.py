"""What Kopf calls. Every handler is one call into the runtime and can't fail; nothing is decided or written here.

    kopf run -A --standalone -m sharepod_operator.handlers
    kopf run -A --standalone sharepod_operator/handlers.py

Only Kopf's low-level half is used: `on.event` writes nothing to the objects that it sees, no finalizers, no patches.
"""

from __future__ import annotations

from typing import Any

import kopf

from sharepod_operator.kube.errors import AuthError
from sharepod_operator.manifest import names
from sharepod_operator.runtime import Runtime, configure_kopf
from sharepod_operator.settings import SettingsError, load


@kopf.on.startup(id="start")
async def start(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Bring up everything of ours, before Kopf logs in or watches anything."""
    configure_kopf(settings)
    if "runtime" in memo:
        return  # whoever embeds Kopf has started it
    try:
        memo.runtime = await Runtime.start(load())
    except (AuthError, SettingsError) as error:
        raise kopf.PermanentError(str(error)) from error  # another try would only repeat it


@kopf.on.cleanup(id="stop")
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Finish what is in flight, give the Lease back, close every connection; end with an error if that is why we stop."""
    runtime: Runtime | None = memo.get("runtime")
    if runtime is None:
        return
    await runtime.stop()
    if runtime.failure is not None:
        raise kopf.PermanentError(f"the operator failed: {runtime.failure}") from runtime.failure


@kopf.on.login(id="login")
async def login(memo: kopf.Memo, **_: Any) -> kopf.ConnectionInfo:
    """Kopf's watches use the credentials that our gateway found."""
    runtime: Runtime = memo.runtime
    return await runtime.kopf_login()


@kopf.on.probe(id="healthy", errors=kopf.ErrorsMode.PERMANENT)
async def healthy(memo: kopf.Memo, **_: Any) -> str:
    """Kopf's own liveness endpoint, where one is configured, tells what /healthz tells."""
    runtime: Runtime = memo.runtime
    return runtime.probe()


@kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, id=names.PLURAL)
@kopf.on.event("", "v1", "nodes", id="nodes")
@kopf.on.event("policy", "v1", "poddisruptionbudgets", id="poddisruptionbudgets")
@kopf.on.event("", "v1", "persistentvolumes", id="persistentvolumes")
@kopf.on.event("", "v1", "persistentvolumeclaims", id="persistentvolumeclaims")
@kopf.on.event("storage.k8s.io", "v1", "storageclasses", id="storageclasses")
async def observe(event: kopf.RawEvent, resource: kopf.Resource, memo: kopf.Memo, **_: Any) -> None:
    """An object came, changed or went."""
    runtime: Runtime = memo.runtime
    runtime.observe(resource.plural, event)
