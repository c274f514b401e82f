"""The command line: exit statuses, last lines, JSON, one line for every mistake, and nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import onnx
import pytest

import ort_dynq
from ort_dynq import cli
from ort_dynq.operators import OPERATORS

MODELS = Path(__file__).parents[2] / "models"
ENCODER = MODELS / "torch_encoder_u8" / "model.onnx"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder: model.onnx, wrong.onnx, whose scale is one unit in the last place larger, and x.npy."""
    monkeypatch.chdir(tmp_path)
    for name, factor in (("model", np.float32(0.1)), ("wrong", np.nextafter(np.float32(0.1), np.float32(1)))):
        model = helpers.parse(
            "float[batch, 4] x",
            "float[batch, 4] y, int8[batch, 4] codes",
            f"""factor = Constant<value = float {{{factor:.12}}}>()
                zero = Constant<value = int8[4] {{0, 0, 0, 0}}>()
                high = ReduceMax<axes = [0], keepdims = 0>(x)
                scale = Mul(high, factor)
                codes = QuantizeLinear(x, scale, zero)
                y = DequantizeLinear(codes, scale, zero)""",
            opset=17,
        )
        del model.opset_import[1]
        onnx.save(model, f"{name}.onnx")
    np.save("x.npy", np.arange(1, 9, dtype=np.float32).reshape(2, 4))
    return tmp_path


def run(*arguments: str | Path, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """``python -m ort_dynq``, of the package that the tests themselves import."""
    environment = {**os.environ, "PYTHONPATH": str(Path(ort_dynq.__file__).parent.parent)}
    command = [sys.executable, "-m", "ort_dynq", *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert cli.main([*arguments, "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


# As a program


def test_rewrite_and_verify_as_a_program(tmp_path: Path) -> None:
    target = tmp_path / "fast.onnx"
    done = run("rewrite", ENCODER, "-o", target, "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "PASSED"
    assert f"{target} is written" in lines
    assert "28 dynamic quantization chains and products to rewrite, 8 to leave" in lines[0]
    assert any(line.split() == ["QuantizeLinear", "16", "0"] for line in lines)
    assert any(line.split()[:2] == ["16", "QuantizeLinear"] for line in lines)
    assert any("fuses" in line and line.split()[:2] == ["8", "DequantizeLinear"] for line in lines)
    assert "\x1b" not in done.stdout
    onnx.checker.check_model(onnx.load(target), full_check=True)

    again = run("verify", ENCODER, target)
    assert (again.returncode, again.stderr, again.stdout.splitlines()[-1]) == (0, "", "PASSED")


def test_a_mistake_as_a_program(tmp_path: Path) -> None:
    failed = run("rewrite", tmp_path / "missing.onnx", "-o", tmp_path / "fast.onnx")
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert failed.stderr == f"ort-dynq: error: there is no file {tmp_path / 'missing.onnx'}\n"


def test_a_failed_verification_as_a_program(folder: Path) -> None:
    failed = run("verify", "model.onnx", "wrong.onnx")
    assert (failed.returncode, failed.stderr, failed.stdout.splitlines()[-1]) == (1, "", "FAILED")


def test_onnxruntime_is_silent(folder: Path) -> None:
    """It logs what goes wrong on its own to stderr, where one line is promised."""
    model = helpers.parse("float[batch, 4] x", "float[3, 3] y", "s = Constant<value_ints = [3, 3]>() y = Reshape(x, s)")
    onnx.save(model, "fixed.onnx")
    failed = run("verify", "fixed.onnx", "fixed.onnx")
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1
    assert "assumed --shape x=2x4; set other shapes like this" in failed.stderr


def test_external_data(folder: Path) -> None:
    """The rewritten model is verified with them before it is written, and they are written with it."""
    model = helpers.parse(
        "float[2, 5] x, float s",
        "float[2, 5] product, int8[2, 5] codes",
        "zero = Constant<value = int8 {0}>() product = Mul(x, weights) codes = QuantizeLinear(product, s, zero)",
    )
    del model.opset_import[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(5, dtype=np.float32), "weights"))
    onnx.save(model, "large.onnx", save_as_external_data=True, location="large.data", size_threshold=0)
    Path("elsewhere").mkdir()
    done = run("rewrite", "large.onnx", "-o", "elsewhere/fast.onnx", "--verify")
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "PASSED")
    assert sorted(path.name for path in Path("elsewhere").iterdir()) == ["fast.onnx", "large.data"]
    assert run("verify", "large.onnx", "elsewhere/fast.onnx").returncode == 0


def test_a_reader_that_goes_away(folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stopped = run("inspect", "model.onnx", stdout=writing)
    os.close(writing)
    assert (stopped.returncode, stopped.stderr) == (141, "")


def test_start_is_light() -> None:
    code = "import sys; from ort_dynq import cli; print({'numpy', 'onnx', 'onnxruntime', 'rich'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


# The commands


def test_rewrite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "rewrite", "model.onnx", "-o", "fast.onnx", "--verify", "--shape", "x=3x4")
    assert data["output"] == "fast.onnx"
    assert [each["operator"] for each in data["rewritten"]] == ["DynamicQuantize", "DynamicDequantize", "ReduceMinMax"]
    assert data["left"] == []
    assert data["after"]["ort_dynq.DynamicQuantize"] == data["before"]["QuantizeLinear"] == 1
    assert data["verification"]["passed"] is True
    assert data["verification"]["inputs"][0]["shape"] == [3, 4]
    assert ort_dynq.verify("model.onnx", "fast.onnx").passed
    assert sorted(path.name for path in folder.iterdir()) == ["fast.onnx", "model.onnx", "wrong.onnx", "x.npy"]


def test_rewrite_without_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "rewrite", "model.onnx", "-o", "fast.onnx")["verification"] is None
    assert cli.main(["rewrite", "fast.onnx", "-o", "again.onnx"]) == 0
    text = capsys.readouterr().out
    assert "0 dynamic quantization chains and products to rewrite" in text
    assert text.splitlines()[-1] == "again.onnx is written"


def test_rewrite_in_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("model.onnx").read_bytes()
    Path("link.onnx").symlink_to("model.onnx")
    for same in ("model.onnx", "./model.onnx", "link.onnx"):
        assert cli.main(["rewrite", "model.onnx", "-o", same]) == 2
        assert (
            capsys.readouterr().err
            == f"ort-dynq: error: {Path(same)} is the input itself; use --force to overwrite it\n"
        )
    assert Path("model.onnx").read_bytes() == before
    assert cli.main(["rewrite", "model.onnx", "-o", "model.onnx", "--force", "--verify"]) == 0
    assert Path("model.onnx").read_bytes() != before


def test_a_rewrite_that_fails_verification_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_dynq import rewriter

    result = rewriter.rewrite("wrong.onnx")
    monkeypatch.setattr(rewriter, "rewrite", lambda *_, **__: result)
    before = sorted(folder.iterdir())
    assert cli.main(["rewrite", "model.onnx", "-o", "fast.onnx", "--verify"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "FAILED"
    assert "fast.onnx is not written" in lines
    assert run_json(capsys, "rewrite", "model.onnx", "-o", "fast.onnx", "--verify", status=1)["output"] is None
    assert sorted(folder.iterdir()) == before


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "inspect", str(ENCODER))
    assert (len(data["rewritten"]), len(data["left"])) == (28, 8)
    assert [group["count"] for group in data["groups"]] == [8, 8, 8, 12]
    assert cli.main(["inspect", str(ENCODER)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{ENCODER}: 28 dynamic quantization chains and products to rewrite, 8 to leave"
    nodes = sum(data["before"].values()), sum(data["after"].values())
    assert lines[1] == f"{nodes[0]} nodes, {nodes[1]} after a rewrite"
    assert [line.split() for line in lines[3:7]] == [
        ["rewritten", "nodes", "graph", "operator", "becomes"],
        ["8", "node_QuantizeLinear_*", "main", "QuantizeLinear", "DynamicRangeFakeQuantize"],
        ["8", "node_QuantizeLinear_*", "main", "QuantizeLinear", "DynamicRangeQuantize"],
        ["12", "node_matmul_*", "main", "MatMul", "AccumulatorDequantize"],
    ]
    assert lines[8].split() == ["left", "nodes", "graph", "operator", "reason"]
    assert lines[9].split()[:2] == ["8", "node_fake_quantize_per_tensor_affine_*"]
    assert "ONNX Runtime fuses" in lines[9]  # one line, however long, where there is no terminal
    assert len(lines) == 10


def test_colours(folder: Path) -> None:
    """Where there is a terminal, unless NO_COLOR is set; never where there is none."""

    def written(no_color: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(Path(ort_dynq.__file__).parent.parent), "TERM": "xterm"}
        environment.pop("NO_COLOR", None)
        if no_color:
            environment["NO_COLOR"] = no_color
        master, slave = os.openpty()
        command = [sys.executable, "-m", "ort_dynq", "inspect", "model.onnx"]
        with subprocess.Popen(command, stdout=slave, stderr=subprocess.PIPE, env=environment) as program:
            _, errors = program.communicate()
            text = os.read(master, 1 << 16).decode()
        os.close(slave)
        os.close(master)
        assert (program.returncode, errors) == (0, b"")
        return text

    green = "\x1b[32m"
    assert green in written("")
    assert green not in written("1")
    assert "\x1b" not in run("inspect", "model.onnx").stdout


def test_exact(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Products of floats stay, and every bit with them; otherwise it says how it compared the products."""
    data = run_json(capsys, "inspect", str(ENCODER), "--exact")
    assert (len(data["rewritten"]), len(data["left"])) == (28, 20)
    exact = run_json(capsys, "rewrite", str(ENCODER), "-o", "exact.onnx", "--exact", "--verify")["verification"]
    assert (exact["passed"], exact["products"], exact["worst_product"]) == (True, [], None)
    fast = run_json(capsys, "rewrite", str(ENCODER), "-o", "fast.onnx", "--verify")["verification"]
    assert (fast["passed"], len(fast["products"]), fast["unreachable"]) == (True, 12, 0)
    assert fast["worst_product"] in [product["name"] for product in fast["products"]]
    assert len(fast["end_to_end"]) == len(fast["perturbed"]) == 1

    assert cli.main(["verify", str(ENCODER), "fast.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Float products that became integer products: 12. Each is computed") for line in lines)
    assert any(line.startswith("worst: node_") and "allowed 8" in line for line in lines)
    assert "All optimizations off, with A's results of these products:" in lines
    assert any(line.startswith("End to end, for information: B, and A with its results") for line in lines)
    assert lines[-1] == "PASSED"
    assert cli.main(["verify", str(ENCODER), "exact.onnx"]) == 0
    assert "integer products" not in capsys.readouterr().out


def test_a_wrong_product_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ort_dynq.rewrite(ENCODER).to_proto()
    product = [node for node in wrong.graph.node if node.op_type == "AccumulatorDequantize"][3]
    (bias,) = (tensor for tensor in wrong.graph.initializer if tensor.name == product.input[5])
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) * np.float32(1.01), bias.name))
    onnx.save(wrong, "wrong.onnx")
    assert cli.main(["verify", str(ENCODER), "wrong.onnx"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(f"incorrect: {product.name}: B's error is ") for line in lines) == 1
    assert lines[-1] == "FAILED"


def test_inspect_takes_names_as_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither markup nor what a terminal would act on, nor line breaks."""
    model = onnx.load("model.onnx")
    model.graph.node[4].name = "[bold]a[/bold] :smile: \x1b[31m\nnext"
    onnx.save(model, "named.onnx")
    assert cli.main(["inspect", "named.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 + 3
    assert sum(r"[bold]a[/bold] :smile: \x1b[31m next" in line for line in lines) == 1


def test_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "model.onnx", "model.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("input x: float32 2x4, generated, seed 0; assumed batch = 2: set it with --shape x=2x4")
    assert lines[-1] == "PASSED"
    data = run_json(capsys, "verify", "model.onnx", "model.onnx", "--seed", "7", "--shape", "x=5x4")
    assert (data["seed"], data["inputs"][0]["shape"], data["inputs"][0]["assumed"]) == (7, [5, 4], {})


def test_verify_finds_the_first_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against NumPy on the outputs of both."""
    data = run_json(capsys, "verify", "model.onnx", "wrong.onnx", "--input", "x=x.npy", status=1)
    y, codes = data["outputs"]
    session = helpers.stock_session(onnx.load("model.onnx")), helpers.stock_session(onnx.load("wrong.onnx"))
    a, b = (each.run(None, {"x": np.load("x.npy")}) for each in session)
    differing = np.argwhere(a[0] != b[0])
    assert data["passed"] is False
    assert codes["differing"] == np.count_nonzero(a[1] != b[1])
    assert y["differing"] == len(differing) > 0
    first = tuple(differing[0])
    assert y["first"] == {"index": [int(i) for i in first], "a": float(a[0][first]), "b": float(b[0][first])}
    assert y["max_ulp"] == np.max(np.abs(a[0].view(np.int32) - b[0].view(np.int32)))

    assert cli.main(["verify", "model.onnx", "wrong.onnx", "--input", "x=x.npy"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "input x: float32 2x4, given"
    assert lines[-1] == "FAILED"
    assert any(f"{[int(i) for i in first]}: A {a[0][first]!s}, B {b[0][first]!s}" in line for line in lines)


def test_no_arguments_print_the_help() -> None:
    helped, expected = run(), run("--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout == expected.stdout
    assert all(command.name in helped.stdout for command in cli.COMMANDS)


@pytest.mark.parametrize("opset", [None, 13])
@pytest.mark.parametrize("name", OPERATORS)
def test_inspect_prints_the_body_of_an_operator(
    name: str, opset: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["inspect", "--body", name, *([] if opset is None else ["--opset", str(opset)])]
    data = run_json(capsys, *arguments)
    assert (data["operator"], data["opset"]) == (name, opset or 21)
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert text == data["body"] + "\n"
    expected = OPERATORS[name].body(opset or 21)
    assert text.split() == expected.split()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            cli.main([command.name, "--help"])
        assert stopped.value.code == 0
        assert f"examples:\n  ort-dynq {command.name} " in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"ort-dynq {ort_dynq.__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("re", ["report", "rewrite"]),
        ("report --se", ["--seconds", "--seed"]),
        ("inspect mo", ["model.onnx"]),
        ("rewrite model.onnx -o wr", ["wrong.onnx"]),
        ("verify --backend n", ["native"]),
    ],
)
def test_completion(words: str, expected: list[str], folder: Path) -> None:
    """In bash itself, as if the tab key was hit."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    script = run("--print-completion", "bash")
    assert (script.returncode, script.stderr) == (0, "")
    given = ["ort-dynq", *words.split()]
    state = f"COMP_WORDS=({' '.join(given)}); COMP_CWORD={len(given) - 1}"
    hit = f"{state}; _shtab_ort_dynq; printf '%s\\n' ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", f"{script.stdout}\n{hit}"], capture_output=True, text=True)
    assert sorted(done.stdout.split()) == expected


def test_interrupted(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ort_dynq.rewriter.rewrite", interrupted)
    assert cli.main(["rewrite", "model.onnx", "-o", "fast.onnx"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_at_the_last_moment(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file is written, and not yet in its place: what was there stays."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    Path("fast.onnx").write_text("old")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("os.replace", interrupted)
    assert cli.main(["rewrite", "model.onnx", "-o", "fast.onnx"]) == 130
    assert capsys.readouterr() == ("", "")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nonsense", "invalid choice: 'nonsense'"),
        ("rewrite model.onnx", "required: -o/--output (see ort-dynq rewrite --help)"),
        ("rewrite missing.onnx -o fast.onnx", "there is no file missing.onnx"),
        ("rewrite text.onnx -o fast.onnx", "text.onnx is not an ONNX model"),
        ("rewrite truncated.onnx -o fast.onnx", "truncated.onnx is not an ONNX model"),
        ("rewrite empty.onnx -o fast.onnx", "empty.onnx is not an ONNX model"),
        ("rewrite . -o fast.onnx", ". is not an ONNX model"),
        ("rewrite model.onnx -o nowhere/fast.onnx", "there is no folder nowhere to write fast.onnx in"),
        ("rewrite model.onnx -o .", ". is a folder; -o takes the name of a file"),
        ("rewrite model.onnx -o model.onnx", "model.onnx is the input itself; use --force to overwrite it"),
        ("rewrite model.onnx -o fast.onnx --verify --shape x=5x5", "x has shape [5, 5], expected [batch, 4]"),
        ("inspect missing.onnx", "there is no file missing.onnx"),
        ("inspect text.onnx", "text.onnx is not an ONNX model"),
        ("inspect", "there is nothing to inspect; give a model, or --body NAME"),
        ("inspect --body Nothing", "there is no operator Nothing, expected one of DynamicQuantize, "),
        ("inspect model.onnx --body DynamicQuantize", "give either IN or --body NAME"),
        ("inspect model.onnx --opset 18", "--opset needs --body NAME"),
        ("verify model.onnx", "required: B"),
        ("verify missing.onnx model.onnx", "A (missing.onnx) is not a file"),
        ("verify model.onnx missing.onnx", "B (missing.onnx) is not a file"),
        ("verify text.onnx model.onnx", "A (text.onnx) is not an ONNX model"),
        ("verify model.onnx truncated.onnx", "B (truncated.onnx) is not an ONNX model"),
        ("verify model.onnx empty.onnx", "B (empty.onnx) is empty"),
        ("verify model.onnx model.onnx --shape x=2xtwo", "--shape x=2xtwo is not of the form NAME=1x128x768"),
        ("verify model.onnx model.onnx --shape 2x4", "--shape 2x4 is not of the form NAME=1x128x768"),
        ("verify model.onnx model.onnx --shape x=-2x4", "--shape x=-2x4 is not of the form NAME=1x128x768"),
        ("verify model.onnx model.onnx --shape z=2x4", "the model has no input z; it has x"),
        ("verify model.onnx model.onnx --shape x=2x5", "x has shape [2, 5], expected [batch, 4]"),
        ("verify model.onnx model.onnx --input z=x.npy", "the model has no input z; it has x"),
        ("verify model.onnx model.onnx --input x", "--input x is not of the form NAME=FILE.npy"),
        ("verify model.onnx model.onnx --input x=none.npy", "there is no file none.npy"),
        ("verify model.onnx model.onnx --input x=text.onnx", "text.onnx is not a .npy file"),
        ("verify model.onnx model.onnx --input x=several.npz", "several.npz contains several arrays"),
        ("verify model.onnx model.onnx --input x=double.npy", "the input x is float64, expected float32"),
        ("verify model.onnx model.onnx --seed -1", "argument --seed"),
        ("verify model.onnx model.onnx --seed x", "x is not a non-negative integer"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_mistakes(
    arguments: str, message: str, as_json: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Path("model.onnx").read_bytes()
    Path("truncated.onnx").write_bytes(whole[: len(whole) * 2 // 3])
    Path("text.onnx").write_text("This is not a model.\n" * 9)
    Path("empty.onnx").touch()
    np.savez("several.npz", a=np.zeros(1))
    np.save("double.npy", np.zeros((2, 4)))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert cli.main([*arguments.split(), *(["--json"] if as_json else [])]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ort-dynq: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_cannot_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the last moment: as if a file could not be moved to its place."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    before = sorted(folder.iterdir())
    assert cli.main(["rewrite", "model.onnx", "-o", "fast.onnx"]) == 2
    assert capsys.readouterr().err == "ort-dynq: error: fast.onnx cannot be written: No space left on device\n"
    assert sorted(folder.iterdir()) == before
