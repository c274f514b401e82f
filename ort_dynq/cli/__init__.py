"""The command line ``ort-dynq``. A subcommand is one file of this package and one line in :data:`COMMANDS`.

Importing this package loads none of numpy, onnx, onnxruntime and rich: every subcommand imports what it needs when it
runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import bench, bench_generate, bench_quantize, command, doctor, inspect, quantize, report, rewrite, verify

COMMANDS = (
    quantize.COMMAND,
    rewrite.COMMAND,
    inspect.COMMAND,
    report.COMMAND,
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
    if given[:1] == ["bench"] and given[1:2] and given[1] in bench.SHORT:
        given[:2] = [bench.SHORT[given[1]]]
    return command.main(parser(), given)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    description = "Fast, exact dynamic quantization for ONNX Runtime on CPUs."
    whole = command.make_parser(command.PROGRAM, description, COMMANDS)
    command.add_program_options(whole)
    return whole
