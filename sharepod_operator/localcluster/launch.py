"""Becomes one program of the control plane, after writing down who it is. Run by path, with the standard library alone:

    python -I -S launch.py PID_FILE PARENT COMMAND...

The process itself writes its pid file, so that there is no moment at which a started process is on no record.
With a PARENT other than 0 the kernel kills the process when that parent ends, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot: with the pid it names one process only (proc(5), field 22)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def main(pid_file: Path, parent: int, command: list[str]) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    scratch = pid_file.with_suffix(".new")
    scratch.write_text(f"{os.getpid()} {start_ticks(os.getpid())} {boot}\n")
    scratch.replace(pid_file)
    if parent:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the process that wanted this one has ended")
    try:
        os.execv(command[0], command)  # noqa: S606 - that is its purpose
    except OSError as error:
        sys.exit(f"Error: {command[0]} can't be run: {error.strerror}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
