"""Runs the benchmarks: ``python tests/bench ops --help``."""

import sys
from pathlib import Path

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its modules are imported from the package `bench`

from bench.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
