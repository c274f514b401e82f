"""Every function is reached by a model of models/, or stands in UNREACHED with a reason.

`python tests/robustness/test_reached.py` prints the functions that no model reaches, and how many lines they have.
"""

from __future__ import annotations

import ast
import contextlib
import io
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ort_dynq"

# Paths in the package, as patterns. Its other files are not examined.
TOOLS = ("accuracy", "genai", "quantization", "report", "verification")
EXAMINED = ("operators/*", "quantizer/*", "rewriter/*", *(f"tools/{each}/*" for each in TOOLS))

# Functions that no model reaches, as patterns of `path::name`, and why they are there.
UNREACHED = {
    "*::_line": "of results in Python: tests of each result",
    "*::_tables": "of results in notebooks: tests of each result",
    "operators/encodings.py::text": "of documentation and of errors",
    "operators/shapes.py::*": "of models that were rewritten before, and of tests: test_shapes.py",
    "operators/program.py::_fail": "of programs with an error",
    "operators/program.py::_source": "of programs with an error",
    "operators/spec.py::values": "of documentation",
    "rewriter/analysis/microsoft.py::_codes": "of models that were rewritten before and have no types",
    "rewriter/analysis/types.py::_hiding_operator": "of models with unknown operators",
    "rewriter/fusion/rotary.py::*": "of rotary embeddings: test_rotary.py",
    "*::require_plugin": "of an option: test_require_plugin.py",
    "rewriter/__init__.py::__*__": "of results that are copied: test_pickled_results.py",
    "rewriter/analysis/inference.py::declare": "of bodies of loops: test_dequantized_rows.py and others",
    "rewriter/analysis/microsoft.py::_causal_convolution": "of new operators of com.microsoft: test_microsoft.py",
    "rewriter/analysis/microsoft.py::_linear_attention": "as above",
    "rewriter/analysis/microsoft.py::_swiglu": "as above",
    "rewriter/chains/repeated.py::cut": "of blocks that no Reshape of the model has: test_masked.py",
    "rewriter/chains/rounding.py::_bounds_after": "of Casts to int32 before a Clip: test_rounding.py",
    "rewriter/chains/written_parts.py::_box_of": "of constant indices: test_written_parts.py",
    "rewriter/inner_weights.py::_move_constants": "of weights in branches and loops: test_inner_weights.py",
    "rewriter/inner_weights.py::_copied": "as above",
    "rewriter/inner_weights.py::chain": "as above",
    "rewriter/inner_weights.py::key": "as above",
    "rewriter/known_branches.py::_is_apart": "of branches in float16 models: test_known_branches.py",
    "rewriter/normal_form.py::_is_one": "of constants of 1: test_normal_form.py",
    "rewriter/policy/cost.py::is_tiny_sum": "of sums of two quantized terms: test_sums_of_codes.py",
    "rewriter/policy/dequantized_products.py::*_of_convolution": "beside convolutions: test_weights_only.py",
    "rewriter/products/picked_rows.py::_build": "of rows that are picked from a product: test_picked_rows.py",
    "rewriter/reasons.py::__reduce__": "of reasons that are copied: test_pickled_results.py",
    "rewriter/codes/affine_form.py::_for_each_row": "of a Concat of parts with a scale of all rows: test_marks.py",
    "rewriter/products/integer_matmul.py::_are_of_rows": "of zero points in another shape: test_epilogue.py",
    "rewriter/codes/terms.py::with_operator": "of infinite rows beside a bounded scale: test_marks.py",
    "rewriter/codes/terms.py::replaced": "as above",
    "rewriter/codes/terms.py::with_dim": "of parts of a length that is not known: test_merged_rows.py",
    "rewriter/reasons.py::__eq__": "of findings that are compared, also in sets",
    "rewriter/reasons.py::__hash__": "of findings that are compared, also in sets",
    "quantizer/__init__.py::_has_weights": "of the progress on large models: test_progress.py",
    "quantizer/__init__.py::counted": "as above",
    "quantizer/quantized_models.py::_refuse_chain": "of models that are quantized already: test_models.py",
    "quantizer/packed_attention.py::parts_of": "of weights that Attention merges: test_saved_attention.py",
    "quantizer/packed_attention.py::_build": "as above",
    "rewriter/analysis/shape_arithmetic.py::known_condition": "of comparisons of shapes: test_known_branches.py",
    "rewriter/analysis/shape_arithmetic.py::_are_same": "of lengths with several sources: test_attention.py",
    "rewriter/codes/affine.py::quotient": "of models that are dequantized: test_dequantize.py",
    "rewriter/codes/float_activations.py::in_float32": "of float16 that is not rounded: test_float16_neighbors.py",
    "rewriter/codes/quotients.py::divisor_of": "of zero points that may be NaN: test_quotients.py",
    "rewriter/convolutions/batch_normalization.py::_match_floats": "in float: test_batch_normalization.py",
    "rewriter/edit.py::__init__": "of new branches for few or many queries: test_saved_attention.py",
    "rewriter/edit.py::_keep": "as above",
    "rewriter/fusion/attention_biases.py::_build": "of biases of MultiHeadAttention: test_saved_attention.py",
    "rewriter/fusion/attention_build.py::count_of": "of operators of attention: test_saved_attention.py",
    "rewriter/fusion/attention_build.py::many_queries": "as above",
    "rewriter/fusion/attention_build.py::chosen": "as above",
    "rewriter/fusion/attention_build.py::_padding": "as above",
    "rewriter/fusion/attention_operands.py::_makes_operands": "as above",
    "rewriter/fusion/attention_operands.py::_build": "as above",
    "rewriter/fusion/attention_operands.py::_made": "as above",
    "rewriter/fusion/attention_operands.py::_unpacked": "as above",
    "rewriter/fusion/attention_operands.py::_rotated": "as above",
    "rewriter/fusion/attention_operands.py::_by_head": "as above",
    "rewriter/fusion/attention_operands.py::_length": "as above",
    "rewriter/fusion/attention_operands.py::_condition": "as above",
    "rewriter/fusion/attention_operands.py::has_no_room": "as above",
    "rewriter/fusion/attention_operators.py::_attention": "as above",
    "rewriter/fusion/attention_operators.py::_multi_head": "as above",
    "rewriter/fusion/attention_operators.py::_has_key_for_each_query": "as above",
    "rewriter/fusion/attention_operators.py::check_multi_head": "as above",
    "rewriter/fusion/attention_operators.py::_padding": "as above",
    "rewriter/fusion/attention_operators.py::is_used": "as above",
    "rewriter/fusion/attention_operators.py::order_of": "as above",
    "rewriter/fusion/attention_build.py::_scaled": "of numbers that queries are multiplied by: test_attention.py",
    "rewriter/fusion/attention_build.py::_without_later_keys": "of causal masks: test_integer_attention.py",
    "rewriter/fusion/attention_build.py::have_keys": "as above",
    "rewriter/fusion/causal.py::_number_in": "as above",
    "rewriter/fusion/causal.py::_above": "as above",
    "rewriter/fusion/causal.py::_is_lower": "as above",
    "rewriter/fusion/causal.py::_keeps_places": "as above",
    "rewriter/fusion/causal.py::_is_index": "as above",
    "rewriter/views.py::noted": "of operators of attention: test_saved_attention.py",
    "rewriter/products/mixture_of_experts.py::_is_certainly_rounded": "of float16: test_mixture_of_experts.py",
    "rewriter/products/unconverted.py::_is_of_plain_int8": "of int8 codes that are inputs: test_unconverted.py",
    "tools/accuracy/accuracy.py::compare": "of results with accuracy: test_pickled_results.py",
    "tools/accuracy/accuracy.py::compare_models": "of limits of verify: test_limits_in_a_build.py",
    "tools/accuracy/gates.py::verdict_on": "as above",
    "tools/accuracy/outputs.py::measure_outputs": "of the accuracy of each output: test_examples.py",
    "tools/accuracy/reference.py::_part": "of data that are kept back: test_selection.py",
    "tools/quantization/selection.py::_stricter": "as above",
    "tools/report/model.py::report": "of reports without a command: test_pickled_results.py",
    "tools/verification/attention.py::_size_of_gate": "of gates of channels: test_verify_fusions.py",
    "tools/verification/saturation.py::_use_int32": "of products without rows of weights: test_empty_products.py",
    "tools/verification/comparison.py::difference": "of results that differ: tests/verification",
    "tools/verification/fusions.py::_run": "of SimplifiedLayerNormalization, with which ONNX's checker refuses a model",
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
    import numpy as np
    import test_networks
    from genai_folders import NAMES, VOCABULARY, copy_of, filled
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
            model = result.to_proto()
            if "exact" not in each and each.get("weights_only") != "blocks":
                repr(verify(load(name), model, inputs=data_sets(name)[0][0]))
        rewrite(result.model)
    for case in test_networks.CASES:
        result = test_networks.quantized(case)
        result.to_proto()
    repr(result), repr(result.report), result._repr_html_()  # what a notebook shows

    def run(command: str, model: str, *arguments: str) -> None:
        source = model if Path(model).is_absolute() else str(ROOT / "models" / model / "model.onnx")
        with contextlib.redirect_stdout(io.StringIO()):
            status = cli.main([command, source, *arguments])
        assert status == 0, (command, model, status)

    encoder = "torch_encoder_u8"
    with tempfile.TemporaryDirectory() as temporary, every_size():
        target, page, notes = (f"{temporary}/{name}" for name in ("new.onnx", "page.html", "notes.txt"))
        run("inspect", encoder)
        run("inspect", encoder, "--values", "matmul_3")
        run("inspect", encoder, "--program", "node_matmul_5")
        run("bench", encoder, "--report", page, "--seconds", "0.01")
        for name, snr in (("float_recurrent", "30"), ("float_encoder", "40")):
            data = "--data", str(ROOT / "models" / name)
            run("quantize", name, "-o", target, "--verify", "--min-snr", snr, *data)
            run("bench", name, target, "--report", page, "--seconds", "0.01", *data)
        run("quantize", name, "-o", target, "--only-if-faster", "--allow-none", *data)
        run("bench-quantize", name, "--report", page, "--seconds", "0.01", *data)
        Path(notes).write_text("Sphinx of black quartz, judge my vow. " * 4, encoding="utf-8")
        folders = [copy_of(name, Path(temporary) / name) for name in NAMES]
        for folder in (*folders, filled("cache8", Path(temporary) / "cache8")):
            run("rewrite", str(folder), "-o", f"{folder}-new", "--fuse", "--verify", "--no-timing")
        llama = str(folders[0])
        run("bench-generate", llama, "--text", notes, "--report", page, "--seconds", "0.01", "--tokens", "4")
        floats = str(filled("float32", Path(temporary) / "float32"))
        np.save(f"{temporary}/tokens.npy", np.arange(64) % VOCABULARY)
        run("quantize", floats, "-o", f"{floats}-new", "--text", f"{temporary}/tokens.npy", "--no-timing")


def unreached() -> list[Function]:
    """Runs the models, and returns the functions that nothing has called since ort_dynq was imported."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        called.add(frame.f_code)

    threading.settrace(note)  # only the calls: `note` returns no function for lines
    sys.settrace(note)
    run_models()
    sys.settrace(None)
    reached = {(code.co_filename, code.co_firstlineno) for code in called}
    return [each for each in functions() if (str(PACKAGE / each.path), each.first) not in reached]


@pytest.mark.exhaustive
def test_models_reach_every_function() -> None:
    """In a process of its own, which imports the package while calls are noted."""
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True, cwd=ROOT)
    names = [line.split()[0] for line in run.stdout.splitlines()[:-1]]
    unknown = [name for name in names if not any(fnmatch(name, pattern) for pattern in UNREACHED)]
    assert not unknown, "models/ needs a model for these functions, or they can go"
    reached = [pattern for pattern in UNREACHED if not any(fnmatch(name, pattern) for name in names)]
    assert not reached, "models reach these functions, or they are gone: UNREACHED need not name them"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    found = unreached()
    for function in found:
        print(function, function.lines)
    print(f"{len(found)} functions, {sum(each.lines for each in found)} lines")
