"""Pod-manager ports: one per pod, unique on its node, drawn round robin so that a freed port is reused late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PortRange:
    """The ports of every node, `first` to `last`. A set of used ports is an int: bit i stands for port first + i."""

    first: int = 50051
    size: int = 511

    def __post_init__(self) -> None:
        if self.first < 1 or self.size < 1 or self.last > 65535:
            raise ValueError(
                f"pod-manager ports {self.first} to {self.last} ({self.size}) must be at least one, between 1 and 65535"
            )

    @property
    def last(self) -> int:
        """The highest port."""
        return self.first + self.size - 1

    @property
    def full(self) -> int:
        """The set of all ports."""
        return (1 << self.size) - 1

    def bit(self, port: int) -> int:
        """The set that holds this port alone; 0 for a port outside the range."""
        offset = port - self.first
        return 1 << offset if 0 <= offset < self.size else 0


DEFAULT_PORTS: Final = PortRange()


def next_port(used: int, cursor: int, ports: PortRange = DEFAULT_PORTS) -> tuple[int, int] | None:
    """Draw the next free port of a node.

    Args:
        used: the set of ports in use there, as `PortRange` describes it.
        cursor: the offset at which the search starts: 0 at first, then what the last draw returned.
        ports: the range.

    Returns:
        The port and the new cursor, or None where all are in use.
    """
    free = ~used & ports.full
    if not free:
        return None
    start = cursor % ports.size
    ahead = free >> start << start
    chosen = ahead or free
    offset = (chosen & -chosen).bit_length() - 1
    return ports.first + offset, (offset + 1) % ports.size
