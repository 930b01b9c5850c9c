"""Where the API server is and who we are: a kubeconfig, or the service account of the Pod that we run in.

kubernetes-asyncio reads the configuration (files, exec plugins, token rotation); the gateway and Kopf's login both get
theirs from the same `Connection`. Its import costs 0.7 s, and Kopf's too, so both are imported when first needed:
commands that work offline never pay for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from sharepod_operator.kube.errors import AuthError, bounded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import kopf
    from kubernetes_asyncio.client import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts token, CA and namespace of the Pod's service account."""

TOKEN_LIFE = timedelta(minutes=50)
"""After this Kopf asks for new credentials. The kubelet renews a token well before its hour is over; Kopf by itself
would keep one until it is refused, and then end when the next one is the same."""

_LOAD_TIMEOUT = 60.0
"""Seconds for an exec plugin to hand out credentials; one may wait for a person and a browser."""


class Connection:
    """An API server's address, TLS settings and current credentials; made by `connect`."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        source: str,
        namespace: str | None,
        load: Callable[[], Awaitable[datetime | None]] | None = None,
    ) -> None:
        self._configuration = configuration
        self._load = load
        self._renewing = asyncio.Lock()
        self.source = source
        """For people: which file and context, or the in-cluster service account."""
        self.namespace = namespace
        """The namespace of the context or of our own Pod; None where neither names one."""
        self.tls = _tls(configuration)
        """None for plain HTTP."""
        self.proxy = _proxy(configuration)
        """The proxy that the kubeconfig names, else the environment's; none for a server on this machine, as in Go."""

    @property
    def server(self) -> str:
        """Base URL without a slash at the end; may carry a path."""
        return str(self._configuration.host).rstrip("/")

    @property
    def server_name(self) -> str | None:
        """The name to expect in the server's certificate where it isn't the host's."""
        return self._configuration.tls_server_name or None

    async def authorization(self) -> str | None:
        """The Authorization header's value. A service account's token is read again from its file every minute."""
        try:
            value: str | None = await self._configuration.get_api_key_with_prefix("BearerToken")
        except (OSError, _config_error()):  # the file is being replaced: the token we have is still good for a while
            value = self._configuration.api_key.get("BearerToken")
        return value.strip() if value else None

    async def renew(self, refused: str | None) -> bool:
        """Reads the credentials anew after a 401 to `refused`; False when there are no others, so that a retry is vain."""
        async with self._renewing:
            if await self.authorization() != refused:
                return True
            if self._load is None:
                return False
            before = self.tls_identity
            await self._load()
            self.tls = _tls(self._configuration)
            return self.tls_identity != before or await self.authorization() != refused

    @property
    def tls_identity(self) -> tuple[str | None, str | None]:
        """Paths of the client's certificate and key."""
        return self._configuration.cert_file, self._configuration.key_file

    async def kopf_info(self) -> kopf.ConnectionInfo:
        """The same address and credentials for Kopf's login handler, renewed when called again after their expiration."""
        import kopf  # noqa: PLC0415

        expiration = datetime.now(UTC) + TOKEN_LIFE if self._load is None else await self._load()
        scheme, _, token = (await self.authorization() or "").partition(" ")
        certificate, key = self.tls_identity
        return kopf.ConnectionInfo(
            server=self.server,
            ca_path=self._configuration.ssl_ca_cert or None,
            insecure=not self._configuration.verify_ssl,
            scheme=scheme or None,
            token=token.strip() or None,
            certificate_path=certificate or None,
            private_key_path=key or None,
            default_namespace=self.namespace,
            proxy_url=self.proxy,
            expiration=expiration,
        )


async def connect(
    *, kubeconfig: str | None = None, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> Connection:
    """The connection from, in this order: the explicit kubeconfig, $KUBECONFIG, ~/.kube/config, the Pod's service account.

    Raises:
        AuthError: nothing was found, or what was found first is not usable (no other place is tried then).
    """
    if kubeconfig:
        return await _from_kubeconfig(kubeconfig, context)
    if environ.get("KUBECONFIG"):
        return await _from_kubeconfig(environ["KUBECONFIG"], context)
    default = Path(environ.get("HOME") or Path.home()) / ".kube" / "config"
    if default.is_file():
        return await _from_kubeconfig(str(default), context)
    if context is not None:
        raise AuthError(
            f"context {context!r} was asked for, but there is no kubeconfig: set KUBECONFIG or make {default}"
        )
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environ)
    raise AuthError(
        f"no API server is known: name a kubeconfig, set KUBECONFIG, make {default}, or run in a Pod with a service account"
    )


async def _from_kubeconfig(paths: str, context: str | None) -> Connection:
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415
    from kubernetes_asyncio.config import kube_config  # noqa: PLC0415

    if not _exists(paths):
        raise AuthError(f"kubeconfig {paths} does not exist")
    where = f"kubeconfig {paths}"
    configuration = Configuration()

    def loader(name: str | None) -> Any:
        merged = kube_config.KubeConfigMerger(paths)
        return kube_config.KubeConfigLoader(config_dict=merged.config, config_base_path=None, active_context=name)

    try:
        current = loader(context).current_context
        name, namespace = current["name"], current["context"].get("namespace")
    except _broken() as error:
        raise AuthError(f"{where} is not usable: {_said(error)}") from error
    source = f"{where}, context {name}"

    async def load() -> datetime | None:
        """Always the same context, read from the file anew: somebody may have logged in again, or switched away."""
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT):
                fresh = loader(name)
                await fresh.load_and_set(configuration)
        except TimeoutError as error:
            raise AuthError(f"{source}: the credential plugin gave no answer in {_LOAD_TIMEOUT:.0f} s") from error
        except _broken() as error:
            raise AuthError(f"{source} is not usable: {_said(error)}") from error
        expiry: datetime | None = getattr(fresh, "exec_plugin_expiry", None)
        return expiry

    await load()
    if urlsplit(str(configuration.host)).scheme not in {"http", "https"}:
        raise AuthError(f"{source}: cluster.server is {configuration.host!r}, which should start with https://")
    try:
        return Connection(configuration, source=source, namespace=namespace, load=load)
    except OSError as error:  # ssl.SSLError is one
        raise AuthError(f"{source}: certificate or key can't be used: {_said(error)}") from error


def _in_cluster(environ: Mapping[str, str]) -> Connection:
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415
    from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    folder = SERVICE_ACCOUNT
    configuration = Configuration()
    try:
        InClusterConfigLoader(
            token_filename=str(folder / "token"), cert_filename=str(folder / "ca.crt"), environ=dict(environ)
        ).load_and_set(configuration)
        namespace_file = folder / "namespace"
        namespace = namespace_file.read_text().strip() if namespace_file.is_file() else None
        return Connection(configuration, source="in-cluster service account", namespace=namespace or None)
    except _broken() as error:
        raise AuthError(f"the Pod's service account under {folder} is not usable: {_said(error)}") from error


def _exists(paths: str) -> bool:
    """Whether one of the kubeconfig's files is there; KUBECONFIG may name several."""
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)


def _proxy(configuration: Configuration) -> str | None:
    if configuration.proxy:
        return str(configuration.proxy)
    url = urlsplit(str(configuration.host))
    if _loopback(url.hostname or "") or proxy_bypass(url.hostname or ""):
        return None
    return getproxies().get(url.scheme)


def _loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _tls(configuration: Configuration) -> ssl.SSLContext | None:
    if not str(configuration.host).startswith("https"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _config_error() -> type[Exception]:
    from kubernetes_asyncio.config import ConfigException  # noqa: PLC0415

    kind: type[Exception] = ConfigException
    return kind


def _broken() -> tuple[type[Exception], ...]:
    """What kubernetes-asyncio raises on a malformed configuration: it asserts and indexes without checking."""
    import yaml  # noqa: PLC0415

    return (
        _config_error(),
        yaml.YAMLError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        AssertionError,
    )


def _said(error: Exception) -> str:
    return bounded(str(error) or type(error).__name__, 200)
