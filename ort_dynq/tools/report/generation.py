"""The HTML page of a comparison of a decoder with its rewritten form: tokens a second as bars, and the files."""

from __future__ import annotations

from pathlib import Path

from ..bench.generation import GenerationBench
from ..measuring.timing import Machine
from . import page


def save(found: GenerationBench, machine: Machine, path: Path) -> None:
    """Writes the page.

    Raises:
        DynqError: The file cannot be written.
    """
    charts = [
        (title, [each for each in found.timings if each.case.is_prompt == is_prompt])
        for title, is_prompt in (("Prompts", True), ("Decoding", False))
    ]
    page.save(page.render("generation.html", r=found, charts=charts, machine=machine), path)
