"""Every function is reached by a model of models/, or stands in UNREACHED with a reason.

`python tests/robustness/test_reached.py` prints the functions that no model reaches, and how many lines they have.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ort_dynq"

# Paths in the package, as patterns. Its other files are not examined.
EXAMINED = ("accuracy/*", "genai/*", "operators/*", "quantizer/*", "report/*", "rewriter/*", "verification/*")

# Functions that no model reaches, as patterns of `path::name`, and why they are there.
UNREACHED = {
    "rewriter/__init__.py::*": "the public interface",
    "rewriter/explain.py::*": "asked for by name",
    "rewriter/grouping.py::*": "of reports",
    "rewriter/listing.py::*": "of reports",
    "rewriter/report.py::*": "of reports",
}

# Functions that no model reaches yet, by path.
OPEN = {
    "operators/encodings.py": "text",
    "operators/packing.py": "unpack unpack_conv packed_conv_shape",
    "operators/program.py": "_fail _source",
    "operators/quantized_attention.py": "_codes _body",
    "operators/spec.py": "values attribute",
    "rewriter/analysis/inference.py": "_error_of _shape_of_own _broadcast _times _divided",
    "rewriter/analysis/repetition.py": "_keeps_last",
    "rewriter/analysis/shape_inference.py": "error",
    "rewriter/analysis/shapes.py": "is_elementwise_of",
    "rewriter/analysis/types.py": "_hiding_operator",
    "rewriter/analysis/values.py": "__str__",
    "rewriter/float16/__init__.py": "write_casts_as_converted",
    "rewriter/float16/casts.py": "widen _describe",
    "rewriter/functions.py": "add_functions",
    "rewriter/fusion/compressed_attention.py": "_is_computed",
    "rewriter/fusion/splitting.py": "is_inexact split_quantizations _split _copied",
    "rewriter/layout.py": "with_layout_of",
    "rewriter/normal_form.py": "inlined_if_possible",
    "rewriter/policy/cost.py": "saves_with_function is_tiny_matrix is_tiny_row"
    " has_few_products has_short_sums_for_two_terms is_small_table is_tiny_recurrence",
    "rewriter/products/activation.py": "_is_scaled_by",
    "rewriter/products/affine_form.py": "scope_of __str__",
    "rewriter/products/integer_matmul.py": "_are_of_rows",
    "rewriter/products/matrix_product.py": "_perm",
    "rewriter/programs/steps.py": "_least",
    "rewriter/programs/tails.py": "_clip_of_float16 axis_of_rows split_tails _split _products_with_programs",
    "rewriter/reasons.py": "code __eq__ __hash__",
    "rewriter/recurrent/cell.py": "_gru _rnn",
    "rewriter/recurrent/layer.py": "steps_first",
    "rewriter/shared_initializers.py": "find",
}


class Function(NamedTuple):
    """A function of the package: its code begins at `first`, with its decorators."""

    path: str
    first: int
    name: str
    lines: int

    def __str__(self) -> str:
        return f"{self.path}::{self.name}"


def functions() -> Iterator[Function]:
    """Yields the functions, except those without statements, of protocols."""
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE).as_posix()
        if not any(fnmatch(path, pattern) for pattern in EXAMINED):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not all(isinstance(each, ast.Expr) for each in node.body):
                first = min(each.lineno for each in (node, *node.decorator_list))
                yield Function(path, first, node.name, (node.end_lineno or first) - first + 1)


def run_models() -> None:
    """Rewrites and verifies every model, quantizes those of the quantizer's tests, and runs commands on some."""
    sys.path[1:1] = [str(ROOT / "tests"), str(ROOT / "tests" / "quantizer")]
    import test_networks
    from genai_folders import NAMES, copy_of
    from quantizing import every_size
    from rewriting import FOLDERS, data_sets, load

    from ort_dynq import cli, verify
    from ort_dynq.rewriter import rewrite

    options: list[dict[str, Any]] = [
        {},
        {"exact": True},
        {"fuse": True},
        {"weights_only": "blocks"},
        {"weights_only": "two-term", "keep_fused": True},
    ]
    for name in FOLDERS:
        for each in options:
            result = rewrite(load(name), **each)
            verify(load(name), result.model, inputs=data_sets(name)[0][0])
    for case in test_networks.CASES:
        test_networks.quantized(case)

    def run(command: str, model: str, *arguments: str) -> None:
        source = model if Path(model).is_absolute() else str(ROOT / "models" / model / "model.onnx")
        status = cli.main([command, source, *arguments, "--quiet"])
        assert status == 0, (command, model, status)

    encoder = "torch_encoder_u8"
    with tempfile.TemporaryDirectory() as temporary, every_size():
        target, page = f"{temporary}/new.onnx", f"{temporary}/page.html"
        run("inspect", encoder)
        run("inspect", encoder, "--values", "matmul_3")
        run("inspect", encoder, "--program", "node_matmul_5")
        run("report", encoder, "-o", page, "--seconds", "0.01")
        for name, snr in (("float_recurrent", "30"), ("float_encoder", "40")):
            data = "--data", str(ROOT / "models" / name)
            run("quantize", name, "-o", target, "--verify", "--min-snr", snr, *data)
            run("report", name, "--quantized", target, "-o", page, "--seconds", "0.01", *data)
        run("quantize", name, "-o", target, "--only-if-faster", "--allow-none", *data)
        run("bench-quantize", name, "--report", page, "--seconds", "0.01", *data)
        for name in NAMES:
            folder = str(copy_of(name, Path(temporary) / name))
            run("rewrite", folder, "-o", f"{folder}-new", "--fuse", "--verify", "--no-timing")
        run("quantize", str(Path(temporary) / "llama"), "-o", f"{temporary}/quantized", "--no-timing")
        run("bench-generate", str(Path(temporary) / "llama"), "--report", page, "--seconds", "0.01")


def unreached() -> list[Function]:
    """Runs the models, and returns the functions that nothing has called since ort_dynq was imported."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        called.add(frame.f_code)

    sys.settrace(note)  # only the calls: `note` returns no function for lines
    run_models()
    sys.settrace(None)
    reached = {(code.co_filename, code.co_firstlineno) for code in called}
    return [each for each in functions() if (str(PACKAGE / each.path), each.first) not in reached]


@pytest.mark.exhaustive
def test_models_reach_every_function() -> None:
    """In a process of its own, which imports the package while calls are noted."""
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True, cwd=ROOT)
    names = [line.split()[0] for line in run.stdout.splitlines()[:-1]]
    known = {*UNREACHED, *(f"{path}::{name}" for path, each in OPEN.items() for name in each.split())}
    unknown = [name for name in names if not any(fnmatch(name, pattern) for pattern in known)]
    assert not unknown, "models/ needs a model for these functions, or they can go"
    reached = [pattern for pattern in known if not any(fnmatch(name, pattern) for name in names)]
    assert not reached, "models reach these functions, or they are gone: nothing here need name them"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    found = unreached()
    for function in found:
        print(function, function.lines)
    print(f"{len(found)} functions, {sum(each.lines for each in found)} lines")
