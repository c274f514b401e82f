"""The command line ``ort-dynq``. A subcommand is one file of this package and one line in :data:`COMMANDS`.

Importing this package loads none of numpy, onnx, onnxruntime and rich: every subcommand imports what it needs when it
runs.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence

from . import (
    bench,
    bench_generate,
    bench_quantize,
    command,
    dequantize,
    doctor,
    inspect,
    quantize,
    rewrite,
    run,
    verify,
)

COMMANDS = (
    quantize.COMMAND,
    rewrite.COMMAND,
    dequantize.COMMAND,
    inspect.COMMAND,
    run.COMMAND,
    doctor.COMMAND,
    verify.COMMAND,
    bench.COMMAND,
    bench_quantize.COMMAND,
    bench_generate.COMMAND,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit status.

    Args:
        argv: The arguments without the name of the program; None for the process's own.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    whole = parser()
    if given[:1] == ["bench"]:
        given = _with_full_name(given)
    elif given[:1] == ["run"]:
        given = ["run", *run.with_separator(given[1:], command.subparser(whole, "run"))]
    return command.main(whole, given)


def _with_full_name(given: list[str]) -> list[str]:
    """Returns `bench-quantize ...` for `bench quantize ...` and for `bench --threads 1 quantize ...`."""
    for i, word in enumerate(given[1:], 1):
        if word in bench.SHORT:
            return [bench.SHORT[word], *given[1:i], *given[i + 1 :]]
        if not word.startswith("-") and not given[i - 1].startswith("-"):
            break  # neither an option nor the value of one: a model
    return given


@functools.cache
def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line, which is made once in a process."""
    description = "Fast, exact dynamic quantization for ONNX Runtime on CPUs."
    whole = command.make_parser(command.PROGRAM, description, COMMANDS)
    command.add_program_options(whole)
    return whole
