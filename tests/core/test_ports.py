"""Pod-manager ports are drawn round robin within a node's range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharepod_operator.core.ports import PortRange, next_port


def test_the_range_is_kubeshares() -> None:
    """50051 to 50561, 511 ports."""
    assert (50051, 50561, 511) == (PortRange().first, PortRange().last, PortRange().full.bit_count())


def test_all_ports_come_once_and_then_none() -> None:
    """From the first to the last, then the node is full."""
    ports, used, cursor, drawn = PortRange(), 0, 0, []
    while (draw := next_port(used, cursor)) is not None:
        port, cursor = draw
        used |= ports.bit(port)
        drawn.append(port)
    assert list(range(50051, 50562)) == drawn


def test_a_freed_port_is_reused_late() -> None:
    """The search starts after the last draw and wraps once."""
    ports = PortRange(100, 3)
    assert (101, 2) == next_port(0, 1, ports)
    assert (102, 0) == next_port(ports.bit(101), 2, ports)
    assert (100, 1) == next_port(ports.bit(102), 0, ports)
    assert (101, 2) == next_port(ports.bit(100) | ports.bit(102), 2, ports)


def test_a_port_outside_the_range_uses_none_inside() -> None:
    """Such as one that an older setting gave out."""
    assert [0, 0, 1, 4] == [PortRange(100, 3).bit(port) for port in (99, 103, 100, 102)]


@given(st.integers(0, 2**8 - 1), st.integers(0, 20))
def test_a_draw_is_free_and_next_in_turn(used: int, cursor: int) -> None:
    """The same as stepping from the cursor one by one."""
    ports = PortRange(100, 8)
    turn = [(cursor + step) % 8 for step in range(8)]
    free = [offset for offset in turn if not used >> offset & 1]
    expected = (100 + free[0], (free[0] + 1) % 8) if free else None
    assert expected == next_port(used, cursor, ports)


@pytest.mark.parametrize(("first", "size"), [(0, 5), (50051, 0), (65535, 2)])
def test_a_range_has_to_be_possible(first: int, size: int) -> None:
    """Between 1 and 65535, one port at least."""
    with pytest.raises(ValueError, match="between 1 and 65535"):
        PortRange(first, size)
