"""Where a slow step says how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable

Report = Callable[[str], None]
"""Takes one line for a person."""


def to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def silent(line: str) -> None:
    """Drops the line."""
    del line
