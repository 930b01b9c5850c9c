"""One JSON line per record on stderr: ours (structlog), Kopf's and every other library's, in the keys of Kopf's own JSON.

Our records start with a stable word and say the rest in a sentence and in fields:
`log.info("placed", message="Assigned ml/bert to GPU-604ac76c on node gpu-a", node="gpu-a", object=reference)` becomes
`{"message": …, "severity": "info", "timestamp": …, "logger": …, "event": "placed", "object": {…}, "node": "gpu-a"}`.
What others log has no `event`; an object that Kopf's record refers to is found under `object` too.

Nothing secret leaves: fields that are named like secrets, environments or pod specs are replaced, and so are credentials
inside of texts. No value is longer than a bound. A log that can't be written (closed pipe, full disk) never stops the operator.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

import orjson
import structlog
from structlog.stdlib import ExtraAdder, ProcessorFormatter

from sharepod_operator.observability.redaction import cut, safe, without_secrets

if TYPE_CHECKING:
    from collections.abc import MutableMapping

EVENT_LIMIT = 128
MESSAGE_LIMIT = 2048
EXCEPTION_LIMIT = 8192

_SILENT = ("aiohttp.access",)
_WARNINGS_ONLY = ("kopf.objects", "kopf.activities")
"""They tell at INFO that a handler was called, which is once per watch event."""
_NEVER_DEBUG = ("kopf", "kubernetes_asyncio")
"""Below INFO these log whole objects, the secrets of their env included, and whole responses."""

_COLOURS = {"debug": 2, "warn": 33, "error": 31, "fatal": 31}

EventDict = structlog.typing.EventDict


class LogFormat(StrEnum):
    """`json` for machines, `console` for a developer's terminal."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least severe records that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure(level: LogLevel, fmt: LogFormat, *, stream: TextIO | None = None) -> None:
    """Sends all records of this process through one handler on `stream` (default: stderr); may be called again.

    The root logger's other handlers are dropped, those that `kopf run` installed before it imported us included.
    """
    handler = _LineHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_formatter(fmt, colours=handler.stream.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(number)
    for name in _NEVER_DEBUG:
        logging.getLogger(name).setLevel(max(number, logging.INFO))
    for name in _WARNINGS_ONLY:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _SILENT:
        logging.getLogger(name).disabled = True
    asyncio_logger = logging.getLogger("asyncio")  # Kopf mutes it, and with it every exception that nobody awaited
    asyncio_logger.handlers[:] = []
    asyncio_logger.propagate = True
    asyncio_logger.setLevel(max(number, logging.WARNING))
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _formatter(fmt: LogFormat, *, colours: bool) -> ProcessorFormatter:
    def console(_logger: Any, _method: str, line: EventDict) -> str:
        return _console(line, colours=colours)

    return ProcessorFormatter(
        foreign_pre_chain=[ExtraAdder(allow={"k8s_ref"}), structlog.contextvars.merge_contextvars],
        processors=[_shape, _json if fmt is LogFormat.JSON else console],
    )


def _shape(_logger: Any, _method: str, line: EventDict) -> EventDict:
    """Kopf's keys first, then what makes the record ours, then its own fields; all bounded, nothing secret."""
    record: logging.LogRecord = line.pop("_record")
    ours = line.pop("_from_structlog")
    event = str(line.pop("event", ""))
    shaped: dict[str, Any] = {
        "message": cut(safe(str(line.pop("message", event))), MESSAGE_LIMIT),
        "severity": _severity(record.levelno),
        "timestamp": datetime.fromtimestamp(record.created, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z"),
        "logger": record.name,
    }
    if ours:
        shaped["event"] = cut(safe(event), EVENT_LIMIT)
    reference = line.pop("k8s_ref", None)
    reference = line.pop("object", reference)
    if reference is not None:
        shaped["object"] = safe(reference)
    exception = _exception(line.pop("exc_info", None))
    stack = line.pop("stack_info", None) or (line.pop("stack", None) if ours else None)
    shaped |= {key: value for key, value in safe(line).items() if key not in shaped}
    if exception:
        shaped["exception"] = _tail(exception)
    if isinstance(stack, str):
        shaped["stack"] = _tail(stack)
    return shaped


def _severity(number: int) -> str:
    """Kopf's words for the level."""
    if number <= logging.DEBUG:
        return "debug"
    if number <= logging.INFO:
        return "info"
    if number <= logging.WARNING:
        return "warn"
    return "error" if number <= logging.ERROR else "fatal"


def _exception(given: Any) -> str:
    """The traceback of what `exc_info` may be: an exception, a triple of sys.exc_info, True, or nothing."""
    match given:
        case BaseException():
            error: BaseException | None = given
        case (_, error_given, _):
            error = error_given
        case None | False:
            error = None
        case _:
            error = sys.exc_info()[1]
    if error is None:
        return ""
    return "".join(traceback.format_exception(error)).rstrip("\n")


def _tail(text: str) -> str:
    """The end of a traceback says what happened, so the beginning is what a long one loses."""
    text = without_secrets(text[-4 * EXCEPTION_LIMIT :])
    return text if len(text) <= EXCEPTION_LIMIT else "…" + text[1 - EXCEPTION_LIMIT :]


def _json(_logger: Any, _method: str, line: EventDict) -> str:
    try:
        return orjson.dumps(line).decode()
    except TypeError:  # half a surrogate pair, which JSON can carry only as an escape
        return json.dumps(line)


def _console(line: MutableMapping[str, Any], *, colours: bool) -> str:
    """Time, severity, sentence and fields in one line, then the traceback; control characters are shown, not obeyed."""
    severity = str(line.pop("severity"))
    clock = str(line.pop("timestamp"))[11:23]
    message = _visible(str(line.pop("message")))
    tail = [_visible(str(line.pop(key)), newlines=True) for key in ("stack", "exception") if key in line]
    if colours and severity in _COLOURS:
        severity = f"\x1b[{_COLOURS[severity]}m{severity:<5}\x1b[0m"
    reference = line.pop("object", None)
    fields = "".join(f" {_visible(str(key))}={_visible(str(value))}" for key, value in line.items())
    where = f" object={_visible(_named(reference))}" if reference is not None else ""
    return "\n".join([f"{clock} {severity:<5} {message} {where}{fields}".rstrip(), *tail])


def _named(reference: Any) -> str:
    if not isinstance(reference, dict):
        return str(reference)
    words = [reference.get("kind"), reference.get("namespace"), reference.get("name")]
    return "/".join(str(word) for word in words if word)


def _visible(text: str, *, newlines: bool = False) -> str:
    return "".join(
        c if c.isprintable() or (newlines and c == "\n") else c.encode("unicode_escape", "replace").decode()
        for c in text
    )


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines; what can't be written is counted, and the count is said once writing works again."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = self._line(record)
        try:
            if self.lost:
                self._write(self._line(_lost_lines(self.lost)))
                self.lost = 0
            self._write(line)
        except (OSError, ValueError):  # no reader, no room, or already closed: scheduling goes on
            self.lost += 1

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # noqa: BLE001  # arguments that don't fit the text, a value whose repr fails
            text = f"Log record of {record.name} ({record.pathname}:{record.lineno}) can't be formatted: {type(error).__name__}"
            return self.format(_record(logging.ERROR, text))

    def _write(self, line: str) -> None:
        try:
            self.stream.write(line + self.terminator)
        except UnicodeEncodeError:
            self.stream.write(line.encode("ascii", "backslashreplace").decode() + self.terminator)
        self.stream.flush()


def _lost_lines(count: int) -> logging.LogRecord:
    return _record(logging.WARNING, f"{count} log lines before this one could not be written")


def _record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, level, __file__, 0, text, None, None)
