"""Log lines as an operator's user and a log collector see them."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import kopf
import pytest
import structlog
from kopf._core.actions.loggers import LocalObjectLogger, ObjectLogger

from sharepod_operator.observability.logging import EXCEPTION_LIMIT, LogFormat, LogLevel, configure
from sharepod_operator.observability.redaction import ITEMS_LIMIT, REDACTED, TEXT_LIMIT, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ml", "name": "bert", "uid": "u-1"}}
REFERENCE = {"apiVersion": "v1", "kind": "Pod", "name": "bert", "uid": "u-1", "namespace": "ml"}


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    touched = [logging.getLogger(name) for name in ("asyncio", "kopf", "kubernetes_asyncio", "aiohttp.access")]
    before = [(one.level, one.handlers[:], one.propagate, one.disabled) for one in touched]
    yield
    root.handlers[:], root.level = handlers, level
    for one, (old, its, propagate, disabled) in zip(touched, before, strict=True):
        one.setLevel(old)
        one.handlers[:], one.propagate, one.disabled = its, propagate, disabled
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    configure(LogLevel.INFO, LogFormat.JSON, stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def only(stream: io.StringIO) -> dict[str, Any]:
    (line,) = lines(stream)
    return line


def test_our_record_has_word_sentence_fields_and_object(stream: io.StringIO) -> None:
    """Our own record: `event` is the stable word, `message` the sentence, the fields keep their types."""
    log = structlog.stdlib.get_logger("sharepod_operator.scheduler")
    log.info("placed", message="Assigned ml/bert to GPU-1", node="gpu-a", request_milli=500, object=REFERENCE)
    line = only(stream)
    assert line.pop("timestamp").endswith("Z")
    assert {
        "message": "Assigned ml/bert to GPU-1",
        "severity": "info",
        "logger": "sharepod_operator.scheduler",
        "event": "placed",
        "object": REFERENCE,
        "node": "gpu-a",
        "request_milli": 500,
    } == line


def test_record_without_sentence_uses_its_word(stream: io.StringIO) -> None:
    """A record is never without a message, which collectors show."""
    structlog.stdlib.get_logger("x").warning("lease_lost")
    assert ("lease_lost", "lease_lost", "warn") == tuple(only(stream)[key] for key in ("message", "event", "severity"))


@pytest.mark.parametrize("logger_class", [ObjectLogger, LocalObjectLogger])
def test_kopf_record_carries_its_object(stream: io.StringIO, logger_class: type[ObjectLogger]) -> None:
    """Kopf's records come out in the same JSON, with the object that they are about and none of Kopf's internals."""
    log = logger_class(body=kopf.Body(cast("Any", POD)), settings=kopf.OperatorSettings())
    log.info("Handler %r succeeded.", "observe")  # once per watch event: not said
    log.error("Handler %r failed.", "observe")
    line = only(stream)
    line.pop("timestamp")
    assert {
        "message": "Handler 'observe' failed.",
        "severity": "error",
        "logger": "kopf.objects",
        "object": REFERENCE,
    } == line


@pytest.mark.parametrize(
    ("level", "severity"),
    [
        (logging.DEBUG, "debug"),
        (logging.INFO, "info"),
        (logging.WARNING, "warn"),
        (logging.ERROR, "error"),
        (logging.CRITICAL, "fatal"),
    ],
)
def test_severities_are_kopfs_words(level: int, severity: str) -> None:
    """The standard library's levels are named as Kopf's JSON names them."""
    stream = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, stream=stream)
    logging.getLogger("somebody").log(level, "x")
    assert severity == only(stream)["severity"]


def test_levels(stream: io.StringIO) -> None:
    """Below the level nothing is written, and Kopf's debug records, which hold whole objects, never are."""
    structlog.stdlib.get_logger("x").debug("hidden")
    logging.getLogger("x").debug("hidden")
    assert [] == lines(stream)
    configure(LogLevel.DEBUG, LogFormat.JSON, stream=stream)
    logging.getLogger("kopf.objects").debug("Patching with: everything")
    structlog.stdlib.get_logger("x").debug("shown")
    assert ["shown"] == [line["message"] for line in lines(stream)]


def test_configure_twice_writes_once() -> None:
    """Handlers that were there, Kopf's included, are replaced, so no record comes twice."""
    other = io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(other))
    stream = io.StringIO()
    for _ in range(2):
        configure(LogLevel.INFO, LogFormat.JSON, stream=stream)
    logging.getLogger("x").info("once")
    assert (1, "") == (len(lines(stream)), other.getvalue())


def test_logger_made_before_configure_follows(stream: io.StringIO) -> None:
    """A module's logger that was used before startup obeys the configuration that comes later."""
    log = structlog.stdlib.get_logger("early")
    log.info("first")
    again = io.StringIO()
    configure(LogLevel.ERROR, LogFormat.JSON, stream=again)
    log.info("too low")
    log.error("second")
    assert (["first"], ["second"]) == ([x["event"] for x in lines(stream)], [x["event"] for x in lines(again)])


def test_access_log_is_silent_and_asyncio_is_heard(stream: io.StringIO) -> None:
    """Each probe of the kubelet would be a line; an exception that nobody awaited, which Kopf mutes, is worth one."""
    logging.getLogger("asyncio").handlers[:] = [logging.NullHandler()]
    logging.getLogger("asyncio").propagate = False
    configure(LogLevel.INFO, LogFormat.JSON, stream=stream)
    logging.getLogger("aiohttp.access").info("GET /healthz")
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    assert ["Task exception was never retrieved"] == [line["message"] for line in lines(stream)]


def test_warnings_become_records(stream: io.StringIO) -> None:
    """Python's warnings are lines too, instead of text between the JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure(LogLevel.INFO, LogFormat.JSON, stream=stream)
        warnings.warn("old thing", stacklevel=1)
    assert "old thing" in only(stream)["message"]


def fail(text: str = "inner") -> None:
    raise ValueError(text)


@pytest.mark.parametrize("ours", [True, False])
def test_exceptions_are_one_line(stream: io.StringIO, ours: bool) -> None:  # noqa: FBT001
    """A traceback is a field of the record, causes included."""
    try:
        try:
            fail()
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError:
        (structlog.stdlib.get_logger("x") if ours else logging.getLogger("x")).exception("failed")
    line = only(stream)
    assert ("failed", "error") == (line["message"], line["severity"])
    assert "ValueError: inner" in line["exception"]
    assert line["exception"].endswith("RuntimeError: outer")
    assert "exc_info" not in line


def test_long_traceback_keeps_its_end(stream: io.StringIO) -> None:
    """What an error says at its end survives the cut, and a secret in it doesn't."""
    try:
        fail("x" * 50_000 + " password='hunter2' the end")
    except ValueError:
        logging.getLogger("x").exception("failed")
    line = only(stream)
    assert len(line["exception"]) <= EXCEPTION_LIMIT
    assert line["exception"].endswith(f"password={REDACTED} the end")


def test_context_of_a_task_is_in_its_records(stream: io.StringIO) -> None:
    """Bound context variables reach our records and those of libraries."""
    with structlog.contextvars.bound_contextvars(attempt=3):
        structlog.stdlib.get_logger("x").info("a")
        logging.getLogger("y").info("b")
    structlog.stdlib.get_logger("x").info("c")
    assert [3, 3, None] == [line.get("attempt") for line in lines(stream)]


PLANTED = "s3cr3t-planted-value"


@pytest.mark.parametrize(
    "fields",
    [
        {"env": [{"name": "PASSWORD", "value": PLANTED}]},
        {"podSpec": {"containers": [{"env": PLANTED}]}},
        {"pod_spec": PLANTED},
        {"outer": {"spec": {"podSpec": PLANTED}}},
        {"token": PLANTED},
        {"bearerToken": PLANTED},
        {"db_password": PLANTED},
        {"headers": {"Authorization": f"Basic {PLANTED}"}},
        {"clientSecret": PLANTED},
        {"items": [{"API-KEY": PLANTED}]},
        {"text": f"header Authorization: Bearer {PLANTED} was refused"},
        {"text": f"GET https://x/?token={PLANTED}&a=b"},
        {"text": f"{{'password': '{PLANTED}'}}"},
        {"text": f'body {{"access_token": "{PLANTED}", "a": 1}}'},
        {"text": f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}"},
        {"error": RuntimeError(f"password={PLANTED}")},
        {"raw": PLANTED.encode()},
    ],
)
def test_planted_secrets_never_come_out(stream: io.StringIO, fields: dict[str, Any]) -> None:
    """Secrets are replaced by the name of their field or by their look, however deep, and in foreign text too."""
    structlog.stdlib.get_logger("x").info("word", **fields)
    logging.getLogger("kopf").info("%s", fields.get("text", ""))
    assert 2 == len(lines(stream))
    assert PLANTED not in stream.getvalue()


def test_json_web_token_is_replaced_in_a_sentence(stream: io.StringIO) -> None:
    """A service account's token is known by its look."""
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"
    structlog.stdlib.get_logger("x").info("word", message=f"answered 401 to {token}, renewing")
    assert f"answered 401 to {REDACTED}, renewing" == only(stream)["message"]


@pytest.mark.parametrize(
    "text",
    [
        'unknown field "spec.containers[0].env[0].valueFrom.secretKeyRef.keys"',
        'Secret "db" not found',
        "0/7 GPUs on 5 nodes are available: 3 GPU(s) Insufficient gpu",
        "spec.token: Required value",
    ],
)
def test_ordinary_sentences_stay_as_they_are(text: str) -> None:
    """What users need to read isn't taken for a secret."""
    assert text == safe(text)


def test_every_value_is_bounded(stream: io.StringIO) -> None:
    """No record grows with what it is about: long texts, lists, mappings and nests are cut, odd values still fit JSON."""
    deep: dict[str, Any] = {}
    for _ in range(50):
        deep = {"deeper": deep}
    structlog.stdlib.get_logger("x").info(
        "word" * 1000,
        message="m" * 100_000,
        text="t" * 100_000,
        many=list(range(10_000)),
        wide={str(number): number for number in range(10_000)},
        deep=deep,
        big=2**70,
        infinite=float("inf"),
        half="\ud800",
        victims={"a"},
        level=LogLevel.INFO,
        error=ValueError("no"),
    )
    line = only(stream)
    assert len(stream.getvalue()) < 16_000
    assert TEXT_LIMIT == len(line["text"])
    assert ITEMS_LIMIT + 1 == len(line["many"]) == len(line["wide"])
    assert (str(2**70), "inf", "\ud800", ["a"], "info", "no") == tuple(
        line[name] for name in ("big", "infinite", "half", "victims", "level", "error")
    )


def test_record_that_cannot_be_formatted_is_reported() -> None:
    """Wrong arguments of somebody's log call say where they are, instead of a traceback between the JSON."""
    stream = io.StringIO()
    configure(LogLevel.INFO, LogFormat.JSON, stream=stream)
    logging.getLogger("careless").info("%d nodes", "many")
    line = only(stream)
    assert "Log record of careless" in line["message"]
    assert "test_logging.py" in line["message"]


class FullDisk(io.StringIO):
    """Refuses writes while `full`."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_full_disk_loses_lines_and_says_so_later(capsys: pytest.CaptureFixture[str]) -> None:
    """While nothing can be written logging is silent and harmless; afterwards one line says how much is missing."""
    disk = FullDisk()
    configure(LogLevel.INFO, LogFormat.JSON, stream=disk)
    log = structlog.stdlib.get_logger("x")
    for _ in range(3):
        log.info("lost")
    disk.full = False
    log.info("kept")
    assert ["3 log lines before this one could not be written", "kept"] == [line["message"] for line in lines(disk)]
    assert "" == capsys.readouterr().err


def test_closed_stream_harms_nobody(stream: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """A reader that went away doesn't stop the operator."""
    stream.close()
    logging.getLogger("x").error("nobody reads this")
    assert "" == capsys.readouterr().err


PIPE_CLOSED = """
import os, structlog
from sharepod_operator.observability.logging import LogFormat, LogLevel, configure
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(writer)
configure(LogLevel.INFO, LogFormat.JSON)
log = structlog.stdlib.get_logger("x")
log.info("first")
os.close(reader)
for number in range(10_000):
    log.info("nobody", number=number)
print("still here")
"""


def test_process_outlives_its_log_pipe() -> None:
    """When the reader of the log pipe dies, the process works on and ends as it would have."""
    done = subprocess.run(
        [sys.executable, "-c", PIPE_CLOSED], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert (0, "still here\n") == (done.returncode, done.stdout)


def test_stack_of_a_record_is_a_field(stream: io.StringIO) -> None:
    """A record that asks for its stack gets it in one field, from us and from libraries."""
    structlog.stdlib.get_logger("x").info("a", stack_info=True)
    logging.getLogger("y").info("b", stack_info=True)
    assert all("test_stack_of_a_record_is_a_field" in line["stack"] for line in lines(stream))
    assert 2 == len(lines(stream))


def test_console_is_for_people() -> None:
    """One readable line per record; line breaks and terminal codes of users' text are shown, not obeyed."""
    stream = io.StringIO()
    configure(LogLevel.INFO, LogFormat.CONSOLE, stream=stream)
    structlog.stdlib.get_logger("x").info("placed", message="Assigned \x1b[31m\nit", object=REFERENCE, node="gpu-a")
    text = stream.getvalue()
    assert 1 == text.count("\n")
    assert "info  Assigned \\x1b[31m\\nit  object=Pod/ml/bert logger=x event=placed node=gpu-a\n" == text[13:]
    try:
        fail()
    except ValueError:
        logging.getLogger("y").exception("failed")
    assert "ValueError: inner\n" == stream.getvalue().splitlines(keepends=True)[-1]
