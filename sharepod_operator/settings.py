"""The operator's settings: environment variables SHAREPOD_* over a YAML file over defaults, all checked before anything runs.

A setting `lease_duration` is the variable SHAREPOD_LEASE_DURATION and the file's key `leaseDuration`. Durations are written
`10s`, `5m`, `1m30s`, `500ms`, or as a number of seconds. What is wrong is reported all at once, one line per mistake.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from sharepod_operator.core.score import DEFAULT_POLICY, POLICIES
from sharepod_operator.kube.auth import SERVICE_ACCOUNT
from sharepod_operator.manifest import names
from sharepod_operator.observability.logging import LogFormat, LogLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping

PREFIX = "SHAREPOD_"
CONFIG = f"{PREFIX}CONFIG"
"""The variable that holds the YAML file's path."""
OTHER_VARIABLES = (CONFIG, "SHAREPOD_TRACE_DIR", "SHAREPOD_LOCALCLUSTER_*", "SHAREPOD_DEMO_*", "SHAREPOD_TEST_*")
"""Variables of benchmarks, local control plane and tests (`*`: all that begin so): not the operator's, and no mistakes."""

_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")
_DURATION = re.compile(r"(?=.)(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?(?:([0-9]+)ms)?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SHOWN = 100


class SettingsError(Exception):
    """Every mistake found, one line each."""

    def __init__(self, errors: Collection[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


def _number(low: float, high: float) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ValueError(f"needs a whole number from {low} to {high}")
        return int(text)

    return parse


def _duration(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        seconds = _seconds(text)
        if seconds is None:
            raise ValueError("needs a duration such as 10s, 5m or 500ms, or a number of seconds")
        if not low <= seconds <= high:
            raise ValueError(f"needs a duration from {low:g}s to {high:g}s")
        return seconds

    return parse


def _whole_seconds(low: float, high: float) -> Callable[[str], int]:
    def parse(text: str) -> int:
        seconds = _duration(low, high)(text)
        if seconds != int(seconds):
            raise ValueError("needs whole seconds: the Lease has no fractions")
        return int(seconds)

    return parse


def _seconds(text: str) -> float | None:
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return float(text)
    if len(text) > 32 or not (found := _DURATION.fullmatch(text)):
        return None
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(
                f"needs {'one of ' if len(words) > 1 else ''}{', '.join(words)}{_did_you_mean(text, words)}"
            )
        return text

    return parse


def _level(text: str) -> LogLevel:
    return LogLevel(_one_of(*LogLevel)(text.lower()))


def _format(text: str) -> LogFormat:
    return LogFormat(_one_of(*LogFormat)(text))


def _name(text: str) -> str:
    if not _DNS_NAME.fullmatch(text):
        raise ValueError("needs a name of lower-case letters, digits, - and .")
    return text


def _name_or_none(text: str) -> str:
    return _name(text) if text else ""


def _names(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    if not all(_DNS_NAME.fullmatch(part) for part in parts) or len(set(parts)) < len(parts):
        raise ValueError("needs different names of lower-case letters, digits, - and ., separated by commas")
    return parts


def _text(text: str) -> str:
    if not text or len(text) > 253 or not text.isprintable() or text != text.strip():
        raise ValueError("needs 1 to 253 printable characters without blanks around")
    return text


def _path(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("needs a path")
    return text


def _setting(default: Any, parse: Callable[[str], Any]) -> Any:
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the operator runs with. Durations are seconds."""

    scheduler_names: tuple[str, ...] = _setting((names.SCHEDULER_NAME,), _names)
    """Pods with one of these as `schedulerName` are ours to place; the first one goes onto the Pods of SharePods."""
    policy: str = _setting(DEFAULT_POLICY, _one_of(*POLICIES))
    """How a GPU is chosen among those that fit."""
    lease_namespace: str = _setting("default", _name)
    """Every operator of a cluster must name the same one. Default: our own Pod's namespace, `default` outside of a Pod."""
    lease_name: str = _setting(names.LEASE_NAME, _name)
    identity: str = _setting("", _text)
    """Who we are in the Lease; must differ between processes. Default: the host's name and eight random digits."""
    lease_duration: int = _setting(15, _whole_seconds(1, 3600))
    """A standby takes over when the Lease has not changed for so long."""
    renew_deadline: float = _setting(10.0, _duration(0.1, 3600))
    """A leader that could not renew for so long stops writing."""
    retry_period: float = _setting(2.0, _duration(0.05, 3600))
    """Time between two tries to get or renew the Lease."""
    writes_in_flight: int = _setting(128, _number(1, 1024))
    """Writes to the API server at the same time."""
    bind_in_flight: int = _setting(96, _number(1, 1024))
    """Bindings among them."""
    initial_backoff: float = _setting(1.0, _duration(0.01, 3600))
    """How long a pod that did not fit waits at least; doubles with each attempt."""
    max_backoff: float = _setting(10.0, _duration(0.01, 3600))
    leftover_after: float = _setting(300.0, _duration(1, 86400))
    """A pod that no change in the cluster has woken is looked at again after so long."""
    victims: str = _setting("all", _one_of("all", "own"))
    """Whom a more important pod may make leave: `all` pods of lower priority, or those that we placed, `own`, alone."""
    resync_interval: float = _setting(300.0, _duration(1, 86400))
    """Time between two comparisons of the caches with full lists."""
    http_host: str = _setting("0.0.0.0", _text)  # noqa: S104  # the kubelet and Prometheus come from outside of the Pod
    http_port: int = _setting(8080, _number(0, 65535))
    """Probes and metrics; 0 takes a free port."""
    log_level: LogLevel = _setting(LogLevel.INFO, _level)  # noqa: RUF009  # makes a field
    log_format: LogFormat = _setting(LogFormat.JSON, _format)  # noqa: RUF009
    kubeconfig: str | None = _setting(None, _path)
    """None: $KUBECONFIG, ~/.kube/config, or the Pod's service account."""
    context: str | None = _setting(None, _text)
    """Context of the kubeconfig; None: its current one."""
    port_base: int = _setting(50050, _number(1024, 65534))
    """Pod-manager ports of a node begin one above this."""
    port_slots: int = _setting(512, _number(2, 32768))
    """One more than there are pod-manager ports on a node; the first slot is reserved, as in KubeShare."""
    gpu_runtime_class_name: str = _setting("", _name_or_none)
    """RuntimeClass of Pods with a GPU that name none themselves; "" leaves them alone."""
    isolation_backend: str = _setting("none", _one_of("none"))
    """What enforces the limits on the node."""


class _Given(NamedTuple):
    """A value as somebody wrote it, and how a message names its place."""

    place: str
    text: str


def load(
    environ: Mapping[str, str] = os.environ,
    *,
    path: str | Path | None = None,
    namespace_file: Path = SERVICE_ACCOUNT / "namespace",
) -> Settings:
    """Reads and checks everything.

    Args:
        environ: the variables; those that Kubernetes sets for Services called `sharepod…` are recognised and skipped.
        path: the YAML file; None: the one that SHAREPOD_CONFIG names, if any.
        namespace_file: where a Pod finds its own namespace.

    Raises:
        SettingsError: with every mistake of environment and file.
    """
    errors: list[str] = []
    file = path if path is not None else environ.get(CONFIG) or None
    given = {} if file is None else _from_file(Path(file), errors)
    given |= _from_environment(environ, errors)
    parsers: dict[str, Callable[[str], Any]] = {item.name: item.metadata["parse"] for item in fields(Settings)}
    values: dict[str, Any] = {}
    for name, (place, text) in given.items():
        try:
            values[name] = parsers[name](text)
        except ValueError as error:
            errors.append(f"{place}={_shown(text)}: {error}")
    if "lease_namespace" not in given and (own := _own_namespace(namespace_file)):
        values["lease_namespace"] = own
    if "identity" not in given:
        values["identity"] = f"{socket.gethostname()}_{secrets.token_hex(4)}"
    settings = Settings(**values)
    errors += _contradictions(settings, given, broken=given.keys() - values.keys())
    if errors:
        raise SettingsError(errors)
    return settings


def _from_environment(environ: Mapping[str, str], errors: list[str]) -> dict[str, _Given]:
    known = {variable(item.name): item.name for item in fields(Settings)}
    given: dict[str, _Given] = {}
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or _is_others(name) or _is_service_link(name, text):
            continue
        if name in known:
            given[known[name]] = _Given(name, text)
        else:
            errors.append(f"{name}={_shown(text)}: no setting has this name{_did_you_mean(name, known)}")
    return given


def _from_file(path: Path, errors: list[str]) -> dict[str, _Given]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506  # a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        errors.append(f"{path}: can't be read: {getattr(error, 'strerror', None) or 'not UTF-8'}")
        return {}
    except yaml.YAMLError as error:
        errors.append(f"{path}: is not YAML: {' '.join(str(error).split())}")
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        errors.append(f"{path}: needs a mapping of settings at the top, such as `logLevel: info`")
        return {}
    known = {key(item.name): item.name for item in fields(Settings)}
    given: dict[str, _Given] = {}
    for word, value in content.items():
        place = f"{path}: {word}"
        if word not in known:
            errors.append(f"{place}: no setting has this name{_did_you_mean(str(word), known)}")
        elif (text := _as_text(value, listed=known[word] == "scheduler_names")) is None:
            errors.append(f"{place}={_shown(value)}: needs a single value")
        else:
            given[known[word]] = _Given(place, text)
    return given


def _as_text(value: Any, *, listed: bool) -> str | None:
    match value:
        case list() if listed and value and all(isinstance(item, str) for item in value):
            return ",".join(value)
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case _:
            return None


def _contradictions(settings: Settings, given: Mapping[str, _Given], *, broken: Collection[str]) -> list[str]:
    """Rules between two settings; one that is broken by itself has been reported and takes no part."""
    found: list[str] = []

    def ordered(name: str, other: str, *, equal: bool = False) -> None:
        small, large = getattr(settings, name), getattr(settings, other)
        if small < large or (equal and small == large) or {name, other} & set(broken):
            return
        place = given[name].place if name in given else key(name)
        found.append(
            f"{place}={small:g}s: needs to be {'at most' if equal else 'less than'} {key(other)}, which is {large:g}s"
        )

    ordered("renew_deadline", "lease_duration")
    ordered("retry_period", "renew_deadline")
    ordered("initial_backoff", "max_backoff", equal=True)
    ordered("max_backoff", "leftover_after", equal=True)
    last = settings.port_base + settings.port_slots - 1
    if last > 65535 and not {"port_base", "port_slots"} & set(broken):
        place = next((given[name].place for name in ("port_base", "port_slots") if name in given), key("port_base"))
        found.append(
            f"{place}: portBase {settings.port_base} with portSlots {settings.port_slots} ends at {last}, needs at most 65535"
        )
    return found


def variable(name: str) -> str:
    """The environment variable of a setting: `log_level` is SHAREPOD_LOG_LEVEL."""
    return PREFIX + name.upper()


def key(name: str) -> str:
    """The file's key of a setting: `log_level` is `logLevel`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _is_others(name: str) -> bool:
    return any(name == other or (other.endswith("*") and name.startswith(other[:-1])) for other in OTHER_VARIABLES)


def _is_service_link(name: str, text: str) -> bool:
    """Kubernetes describes each Service of the namespace in variables, also a Service that is called `sharepod-http`."""
    return bool(_SERVICE_LINK.search(name) or _SERVICE_URL.match(text))


def _did_you_mean(word: str, known: Collection[str]) -> str:
    lowered = {name.lower().replace("_", ""): name for name in known}
    close = get_close_matches(word.lower().replace("_", ""), lowered, n=1)
    return f"; did you mean {lowered[close[0]]}?" if close else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _own_namespace(file: Path) -> str:
    try:
        return _name(file.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return ""


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which PyYAML would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for word, _ in node.value:
            if word.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{word.value} is there twice", word.start_mark)
            if isinstance(word, yaml.ScalarNode):
                seen.add(word.value)
        return super().construct_mapping(node, deep)
