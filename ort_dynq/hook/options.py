"""The options of `install` and `ort-dynq run`, and the environment variable in which they reach other processes."""

from __future__ import annotations

import fnmatch
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import DynqError
from ..rewrite_options import RewriteOptions

VARIABLE, RECORD = "ORT_DYNQ_RUN", "ORT_DYNQ_RUN_RECORD"
"""The environment variables that `ort-dynq run` sets for a program and its children: the options, and a file."""


@dataclass(frozen=True)
class HookOptions:
    """What is done with the models of a program; :func:`ort_dynq.install` describes each option."""

    exact: bool = False
    fuse: bool = False
    keep: tuple[str, ...] = ()
    quantize: tuple[str, ...] = ()
    min_snr: float = 25.0
    min_agreement: float = 0.95
    inputs: int = 3

    def check(self) -> None:
        """Checks the values.

        Raises:
            DynqError: One is wrong.
        """
        if self.exact and self.fuse:
            raise DynqError("exact keeps every bit, fuse changes the last ones; give one of them")
        if self.exact and self.quantize:
            raise DynqError("exact keeps every bit, quantize changes results; give one of them")
        if math.isnan(self.min_snr):
            raise DynqError("min_snr is not a number of decibels")
        if not 0 <= self.min_agreement <= 1:
            raise DynqError(f"min_agreement is {self.min_agreement}, expected a share from 0 to 1")
        if self.inputs < 1:
            raise DynqError(f"inputs is {self.inputs}, expected 1 or more")

    @property
    def rewriting(self) -> RewriteOptions:
        """The options of a rewrite."""
        return RewriteOptions(exact=self.exact, fuse=self.fuse)


@dataclass(frozen=True)
class ProcessOptions:
    """What a process of a program is told.

    Attributes:
        options: The options.
        record: The file to which it adds its sessions; no file if it is empty.
        verbosity: 1 to log each session on stderr, more for details.
    """

    options: HookOptions
    record: str = ""
    verbosity: int = 0

    def variables(self) -> dict[str, str]:
        """Returns the environment variables that say this."""
        text = json.dumps({"options": asdict(self.options), "verbosity": self.verbosity})
        return {VARIABLE: text, RECORD: self.record}

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> ProcessOptions | None:
        """Returns what this process is told; None outside of `ort-dynq run`.

        Raises:
            DynqError: Somebody else has written the environment variable.
        """
        text = environment.get(VARIABLE)
        if not text:
            return None
        try:
            found = json.loads(text)
            fields: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in found["options"].items()
            }
            options = HookOptions(**fields)
            options.check()
            return cls(options, environment.get(RECORD, ""), int(found["verbosity"]))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DynqError(f"{VARIABLE} is not what ort-dynq run writes: {error}") from error


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether a model's path, or the name of its file, matches a pattern."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns for name in (path, os.path.basename(path)))
