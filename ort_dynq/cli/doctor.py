"""``ort-dynq doctor``: checks the installation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .command import FAILED, Command, Outcome
from .render import one_line, progress, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def _arguments(_: argparse.ArgumentParser) -> None:
    """Adds nothing."""


def _run(_: argparse.Namespace) -> Outcome:
    with progress() as track:
        from ..tools.doctor import examine

        found = examine(track=track)

    def text() -> Iterator[RenderableType]:
        yield table(
            ("package", "version"), [(name, version or "not installed") for name, version in found.versions.items()]
        )
        yield ""
        yield f"{found.platform}; released wheel for it: {found.wheel_test}"
        yield one_line(f"{found.cpu}: {' '.join(found.features) or 'features unknown'}")
        yield f"instruction set in use: {found.isa or 'none'}; available: {', '.join(found.isas) or 'none'}"
        yield found.gain
        if found.threads:
            yield found.threads
        yield f"cache of InferenceSession: {found.cache}\n"
        results = {True: "ok", False: "FAILED", None: "not run"}
        rows = [(each.name, results[each.passed], each.detail) for each in found.checks]
        yield table(("check", "result", "detail"), rows, style=lambda row: "red" if row[1] == "FAILED" else "green")
        yield ""
        if found.failure:
            yield one_line(f"{found.failure.name}: {found.failure.detail}; {found.failure.advice}")
        yield "FAILED" if found.failure else "PASSED"

    return Outcome(found.to_dict(), text, FAILED if found.failure else 0)


COMMAND = Command(
    "doctor",
    "check this installation: versions, CPU, both backends, and a self-test of the kernels",
    ("ort-dynq doctor --json",),
    _arguments,
    _run,
)
