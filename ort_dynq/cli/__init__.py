"""The command line ``ort-dynq``. A subcommand is one file of this package and one line in :data:`COMMANDS`.

Importing this package loads none of numpy, onnx, onnxruntime and rich: every subcommand imports what it needs when it
runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import bench, command, doctor, inspect, quantize, report, rewrite, verify

COMMANDS = (
    quantize.COMMAND,
    rewrite.COMMAND,
    inspect.COMMAND,
    report.COMMAND,
    doctor.COMMAND,
    verify.COMMAND,
    bench.COMMAND,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit status.

    Args:
        argv: The arguments without the name of the program; None for the process's own.
    """
    return command.main(parser(), argv)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    description = "Fast, exact dynamic quantization for ONNX Runtime on CPUs."
    whole = command.make_parser(command.PROGRAM, description, COMMANDS)
    command.add_program_options(whole)
    return whole
