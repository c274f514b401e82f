"""The CPU quota of a container: what Linux's control groups (cgroups v1 and v2) allow this process.

Formats: ``Documentation/admin-guide/cgroup-v2.rst`` and ``scheduler/sched-bwc.rst`` of Linux, and proc(5) for
``/proc/self/cgroup`` and ``/proc/self/mountinfo``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cpu_quota(root: str | Path = "/") -> float | None:
    """Returns how many cores of time this process may use, or None if nothing limits it.

    Every group from that of the process up to the root of the mounted tree counts: the smallest quota holds.

    Args:
        root: The folder in which ``proc`` and the mounted trees are; tests give another one.
    """
    root = Path(root)
    return min((quota for folder in _folders(root) if (quota := _quota(folder)) is not None), default=None)


def _folders(root: Path) -> Iterator[Path]:
    """Yields the folders of the groups that this process is in, in the trees that have the CPU controller."""
    for kind, mounted_root, mount_point in _mounts(root):
        for path in _paths(root, kind):
            inside = PurePosixPath(path)
            # A container may see a path on the host, while the tree that is mounted begins at its own group.
            is_inside = inside.is_relative_to(mounted_root) and ".." not in inside.parts
            inside = inside.relative_to(mounted_root) if is_inside else PurePosixPath()
            base = root / mount_point.lstrip("/")
            yield from (base / each for each in (inside, *inside.parents))


def _mounts(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yields the type, the root and the mount point of each mounted tree with the CPU controller."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, about = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(about) < 3:
            continue
        if about[0] == "cgroup2" or (about[0] == "cgroup" and "cpu" in about[2].split(",")):
            yield about[0], _unescaped(fields[3]), _unescaped(fields[4])


def _paths(root: Path, kind: str) -> Iterator[str]:
    """Yields the path of this process's group in the tree of a type."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if (number == "0" and not controllers) if kind == "cgroup2" else "cpu" in controllers.split(","):
            yield path


def _quota(folder: Path) -> float | None:
    """Returns the quota of one group in cores; None if it has none."""
    quota, period = (*" ".join(_lines(folder / "cpu.max")).split(), "", "")[:2]
    if not quota:
        quota, period = ("".join(_lines(folder / f"cpu.cfs_{each}_us")) for each in ("quota", "period"))
    if not (quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0):  # "max" and -1: no limit
        return None
    return int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    """Returns the lines of a file; none if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _unescaped(path: str) -> str:
    """Replaces the octal escapes of spaces and the like in a path of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
