"""Measures how many random spellings become integer products: ``python tests/spellings --help``."""

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
sys.path[0:1] = [str(_TESTS), str(_TESTS / "rewriter")]  # not this folder: its modules are in the package `spellings`

from spellings.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
