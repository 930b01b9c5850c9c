"""Settings from variables and a file: precedence, forms, and every mistake at once in words that help."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.observability.logging import LogFormat, LogLevel
from sharepod_operator.settings import Settings, SettingsError, key, load, variable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def loaded(folder: Path, environ: Mapping[str, str] | None = None, text: str | None = None) -> Settings:
    path = None
    if text is not None:
        path = folder / "s.yaml"
        path.write_text(text, encoding="utf-8")
    return load(environ or {}, path=path, namespace_file=folder / "namespace")


def mistakes(folder: Path, environ: Mapping[str, str] | None = None, text: str | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        loaded(folder, environ, text)
    assert "\n".join(caught.value.errors) == str(caught.value)
    return [error.replace(f"{folder}/", "") for error in caught.value.errors]


def test_defaults(folder: Path) -> None:
    """Without any setting the operator runs as documented, with an identity of its own."""
    settings = loaded(folder)
    assert re.fullmatch(r".+_[0-9a-f]{8}", settings.identity)
    assert settings.identity != loaded(folder).identity
    assert Settings(identity=settings.identity) == settings
    assert (("sharepod-scheduler",), "bestFit", "default") == (
        settings.scheduler_names,
        settings.policy,
        settings.lease_namespace,
    )


@pytest.mark.parametrize("item", dataclasses.fields(Settings), ids=lambda item: item.name)
def test_every_default_is_legal(item: dataclasses.Field[Any]) -> None:
    """What a default says could be written into a file as well."""
    default = ",".join(item.default) if isinstance(item.default, tuple) else item.default
    if default not in ("", None):
        assert item.default == item.metadata["parse"](str(default))


def test_variable_wins_over_file_and_file_over_default(folder: Path) -> None:
    """Precedence, setting by setting."""
    settings = loaded(folder, {"SHAREPOD_HTTP_PORT": "1"}, "httpPort: 2\nlogLevel: debug\n")
    assert (1, LogLevel.DEBUG, LogFormat.JSON) == (settings.http_port, settings.log_level, settings.log_format)


def test_file_is_found_by_variable(folder: Path) -> None:
    """SHAREPOD_CONFIG names the file; an argument goes before it."""
    (folder / "a.yaml").write_text("httpPort: 11")
    (folder / "b.yaml").write_text("httpPort: 12")
    environ = {"SHAREPOD_CONFIG": str(folder / "a.yaml")}
    assert 11 == load(environ).http_port
    assert 12 == load(environ, path=folder / "b.yaml").http_port
    assert 8080 == load({"SHAREPOD_CONFIG": ""}).http_port


def test_own_namespace_holds_the_lease(folder: Path) -> None:
    """In a Pod the Lease is where the Pod is, unless it is set."""
    (folder / "namespace").write_text("gpu-system\n")
    assert "gpu-system" == loaded(folder).lease_namespace
    assert "other" == loaded(folder, {"SHAREPOD_LEASE_NAMESPACE": "other"}).lease_namespace


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1m30s", 90), ("1h", 3600), ("1500ms", 1.5), ("1.5s", 1.5), ("90", 90), ("2.5", 2.5)],
)
def test_durations(folder: Path, text: str, seconds: float) -> None:
    """A duration has a unit or is a number of seconds, in variables and files alike."""
    assert seconds == loaded(folder, {"SHAREPOD_RESYNC_INTERVAL": text}).resync_interval
    assert seconds == loaded(folder, text=f"resyncInterval: {text}").resync_interval


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 s", "10x", "1s1m", "1_0", "1e3", "nan", "inf", "٣s", "1.5m", "9" * 99, "0"]
)
def test_bad_durations(folder: Path, text: str) -> None:
    """Anything else is refused with what would be right."""
    (error,) = mistakes(folder, {"SHAREPOD_RESYNC_INTERVAL": text})
    assert error.startswith("SHAREPOD_RESYNC_INTERVAL=")
    assert "needs a duration" in error


@pytest.mark.parametrize(
    ("form", "text"),
    [("schedulerNames: [a, b.c]", None), ("schedulerNames: a, b.c", None), (None, "a,b.c"), (None, " a , b.c ")],
)
def test_names(folder: Path, form: str | None, text: str | None) -> None:
    """Names are a list, or separated by commas."""
    environ = {"SHAREPOD_SCHEDULER_NAMES": text} if text else {}
    assert ("a", "b.c") == loaded(folder, environ, form).scheduler_names


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("HTTP_PORT", "80800", "needs a whole number from 0 to 65535"),
        ("HTTP_PORT", "-1", "needs a whole number from 0 to 65535"),
        ("HTTP_PORT", "8_0", "needs a whole number from 0 to 65535"),
        ("HTTP_PORT", "٨٠", "needs a whole number from 0 to 65535"),
        ("WRITES_IN_FLIGHT", "0", "needs a whole number from 1 to 1024"),
        ("POLICY", "bestfit", "needs one of bestFit, firstFit, spread, random; did you mean bestFit?"),
        ("LOG_LEVEL", "verbose", "needs one of debug, info, warning, error"),
        ("LOG_FORMAT", "jsn", "needs one of json, console; did you mean json?"),
        ("ISOLATION_BACKEND", "mps", "needs none"),
        ("LEASE_NAMESPACE", "Kube_System", "needs a name of lower-case letters, digits, - and ."),
        ("LEASE_DURATION", "1.5s", "needs whole seconds: the Lease has no fractions"),
        (
            "SCHEDULER_NAMES",
            "a,,b",
            "needs different names of lower-case letters, digits, - and ., separated by commas",
        ),
        ("SCHEDULER_NAMES", "a,a", "needs different names of lower-case letters, digits, - and ., separated by commas"),
        ("CONTEXT", "", "needs 1 to 253 printable characters without blanks around"),
        ("HTTP_HOST", "a\nb", "needs 1 to 253 printable characters without blanks around"),
        ("KUBECONFIG", " ", "needs a path"),
    ],
)
def test_bad_values(folder: Path, name: str, text: str, complaint: str) -> None:
    """One line names the variable, its value and what is right."""
    assert [f"SHAREPOD_{name}={text!r}: {complaint}"] == mistakes(folder, {f"SHAREPOD_{name}": text})


def test_unknown_names_are_mistakes(folder: Path) -> None:
    """A typo is never ignored; what was probably meant is told, and foreign variables are nobody's business."""
    environ = {"SHAREPOD_HTPP_PORT": "1", "SHAREPOD_ZZZZZZ": "2", "PATH": "/bin", "SHAREPODS": "x"}
    assert [
        "s.yaml: loglevel: no setting has this name; did you mean logLevel?",
        "s.yaml: lease_duration: no setting has this name; did you mean leaseDuration?",
        "SHAREPOD_HTPP_PORT='1': no setting has this name; did you mean SHAREPOD_HTTP_PORT?",
        "SHAREPOD_ZZZZZZ='2': no setting has this name",
    ] == mistakes(folder, environ, "loglevel: info\nlease_duration: 3\n")


def test_variables_of_others_are_skipped(folder: Path) -> None:
    """Kubernetes' variables for Services named `sharepod…`, and those of benchmarks and local cluster, are no mistakes."""
    environ = {
        "SHAREPOD_OPERATOR_SERVICE_HOST": "10.0.0.1",
        "SHAREPOD_OPERATOR_SERVICE_PORT": "8080",
        "SHAREPOD_OPERATOR_SERVICE_PORT_METRICS": "8080",
        "SHAREPOD_OPERATOR_PORT": "tcp://10.0.0.1:8080",
        "SHAREPOD_OPERATOR_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "SHAREPOD_OPERATOR_PORT_8080_TCP_PROTO": "tcp",
        "SHAREPOD_OPERATOR_PORT_8080_TCP_PORT": "8080",
        "SHAREPOD_OPERATOR_PORT_8080_TCP_ADDR": "10.0.0.1",
        "SHAREPOD_HTTP_PORT": "tcp://10.0.0.2:80",
        "SHAREPOD_TRACE_DIR": "/data",
        "SHAREPOD_LOCALCLUSTER_BIN": "/bin",
    }
    assert 8080 == loaded(folder, environ).http_port


def test_all_mistakes_at_once(folder: Path) -> None:
    """Nobody has to start the operator once per mistake: file, variables and contradictions in one go."""
    environ = {"SHAREPOD_POLICY": "worst", "SHAREPOD_RENEW_DEADLINE": "20s"}
    assert [
        "s.yaml: httpPort='x': needs a whole number from 0 to 65535",
        "SHAREPOD_POLICY='worst': needs one of bestFit, firstFit, spread, random",
        "SHAREPOD_RENEW_DEADLINE=20s: needs to be less than leaseDuration, which is 15s",
    ] == mistakes(folder, environ, "httpPort: x\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("retryPeriod: 10s", "s.yaml: retryPeriod=10s: needs to be less than renewDeadline, which is 10s"),
        ("leaseDuration: 5", "renewDeadline=10s: needs to be less than leaseDuration, which is 5s"),
        ("initialBackoff: 1m", "s.yaml: initialBackoff=60s: needs to be at most maxBackoff, which is 10s"),
        ("maxBackoff: 1h", "s.yaml: maxBackoff=3600s: needs to be at most leftoverAfter, which is 300s"),
        ("portBase: 65500", "s.yaml: portBase: portBase 65500 with portSlots 512 ends at 66011, needs at most 65535"),
    ],
)
def test_settings_that_contradict_each_other(folder: Path, text: str, complaint: str) -> None:
    """A rule between two settings names both."""
    assert [complaint] == mistakes(folder, text=text)


def test_broken_setting_causes_no_second_complaint(folder: Path) -> None:
    """A contradiction with a value that was never legal would only confuse."""
    assert 1 == len(mistakes(folder, {"SHAREPOD_LEASE_DURATION": "5x"}))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a", "s.yaml: needs a mapping of settings at the top, such as `logLevel: info`"),
        ("httpPort:", "s.yaml: httpPort=None: needs a single value"),
        ("httpPort: [1]", "s.yaml: httpPort=[1]: needs a single value"),
        ("httpPort: true", "s.yaml: httpPort='true': needs a whole number from 0 to 65535"),
        ("schedulerNames: []", "s.yaml: schedulerNames=[]: needs a single value"),
    ],
)
def test_bad_files(folder: Path, text: str, complaint: str) -> None:
    """A file of the wrong form is told in one line."""
    assert [complaint] == mistakes(folder, text=text)


def test_file_that_is_no_yaml(folder: Path) -> None:
    """The line of the mistake is told; a key that is there twice is one, too."""
    (error,) = mistakes(folder, text="a: [")
    assert error.startswith("s.yaml: is not YAML: ")
    assert "\n" not in error
    (error,) = mistakes(folder, text="httpPort: 1\nhttpPort: 2\n")
    assert "httpPort is there twice" in error
    assert "line 2" in error


def test_file_that_cannot_be_read(folder: Path) -> None:
    """A file that is named must be there, and be text."""
    with pytest.raises(SettingsError, match=r"gone\.yaml: can't be read: No such file or directory"):
        load({"SHAREPOD_CONFIG": str(folder / "gone.yaml")})
    (folder / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SettingsError, match=r"bytes\.yaml: can't be read: not UTF-8"):
        load({}, path=folder / "bytes.yaml")


def test_empty_file_changes_nothing(folder: Path) -> None:
    """A file of comments is a file without settings."""
    assert 8080 == loaded(folder, text="# nothing yet\n").http_port


def test_level_in_capitals(folder: Path) -> None:
    """Levels are understood in the spelling of Python's logging."""
    assert LogLevel.WARNING == loaded(folder, {"SHAREPOD_LOG_LEVEL": "WARNING"}).log_level


def test_empty_runtime_class_means_none(folder: Path) -> None:
    """A manifest may leave the value empty."""
    assert "" == loaded(folder, {"SHAREPOD_GPU_RUNTIME_CLASS_NAME": ""}).gpu_runtime_class_name


def test_names_of_a_setting() -> None:
    """One setting has one name in each place, derived by rule."""
    assert ("SHAREPOD_LOG_LEVEL", "logLevel") == (variable("log_level"), key("log_level"))
