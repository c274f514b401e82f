"""A fuzzer that mutates the models of models/ and passes them to rewrite, inspect, verify and sessions.

    python tests/robustness/hostile_models.py --seconds 600 --seed 1

Every model either works or is refused in one line (exit status 2, DynqError). A traceback, a crash of the process, a
hang, too much memory or a half-written file is a failure. A model that ONNX Runtime opens must open after the rewrite.
Crashes of stock ONNX Runtime on the original model are counted and do not fail.
The fuzzer keeps models that fail in a folder and prints its name. Once fixed, they belong in tests/robustness/hostile/.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import io
import json
import os
import random
import resource
import selectors
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from odd_graphs import CHANGES

import ort_dynq
from ort_dynq import cli
from ort_dynq.cli import closing
from ort_dynq.rewriter import Result, rewrite

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "hostile"  # models that failed in the past
SEEDS = sorted(path for path in ROOT.glob("models/*/model.onnx") if path.stat().st_size < 20_000)
SECONDS = 20  # the limit for one stage of one model, of the processor
MEGABYTES = 1000  # the limit by which one stage may raise the peak memory of the process

_NUMBERS = (0, 1, -1, 2, 3, 7, 10, 13, 16, 18, 21, 25, 127, 1000, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
_TEXTS = ("", "x", "ort_dynq", "ai.onnx", "com.microsoft", "\n\x1b[31m", "é\u2028\ud7ff", "a" * 5000, "../../secret")
_OPERATORS = tuple(operator for path in SEEDS for operator in {node.op_type: 0 for node in onnx.load(path).graph.node})
_LOCATIONS = ("../../etc/passwd", "/etc/passwd", "none.bin", ".", "model.onnx", "a/../../b", "link", "/dev/zero", "\0")


# Mutations


def mutate(rng: random.Random, model: onnx.ModelProto) -> None:
    """Mutates any field of any message in place, or makes a change that mutations of fields rarely make."""
    rare = (_outsourced, _nested, _recursive, _renamed, _cyclic, _operator, rng.choice(CHANGES))
    rng.choice((_field,) * 12 + rare)(rng, model)


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                yield from _messages(each)


def _field(rng: random.Random, model: onnx.ModelProto) -> None:
    message = rng.choice(list(_messages(model)))
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < 0.7 and message.ListFields():
        field, _ = rng.choice(message.ListFields())  # most fields are not set
    if field.is_repeated:
        _elements(rng, model, getattr(message, field.name), field)
    elif field.message_type is not None:
        if rng.random() < 0.5:
            message.ClearField(field.name)
        else:
            like = [each for each in _messages(model) if each.DESCRIPTOR is field.message_type]
            if like:
                getattr(message, field.name).CopyFrom(copy.deepcopy(rng.choice(like)))
            else:
                getattr(message, field.name).SetInParent()
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(rng, model, field, getattr(message, field.name)))


def _elements(rng: random.Random, model: onnx.ModelProto, values: Any, field: Any) -> None:
    """Removes, repeats, shuffles, changes or adds elements of a repeated field."""
    index = rng.randrange(len(values)) if len(values) else -1
    choice = rng.randrange(5)
    if index >= 0 and choice == 0:
        del values[index]
    elif index >= 0 and choice == 1:
        values.extend([values[index]] * rng.choice((1, 1, 2, 100)))
    elif index >= 0 and choice == 2:
        elements = list(values)
        rng.shuffle(elements)
        del values[:]
        values.extend(elements)
    elif field.message_type is None:
        if index >= 0 and choice == 3:
            values[index] = _scalar(rng, model, field, values[index])
        else:
            values.append(_scalar(rng, model, field, None))
    else:
        like = [each for each in _messages(model) if each.DESCRIPTOR is field.message_type]
        if like:
            values.append(copy.deepcopy(rng.choice(like)))
        else:
            values.add()


def _scalar(rng: random.Random, model: onnx.ModelProto, field: Any, old: Any) -> Any:
    kind = field.cpp_type
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, float("nan"), float("inf")))
    if kind == field.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind != field.CPPTYPE_STRING:
        low, high = {
            field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
            field.CPPTYPE_UINT64: (0, 2**64 - 1),
        }.get(kind, (-(2**63), 2**63 - 1))
        number = rng.choice((*_NUMBERS, rng.randrange(30), (old or 0) + rng.choice((1, -1))))
        return min(max(number, low), high)
    if field.type == field.TYPE_BYTES:
        data = old or b""
        return rng.choice((b"", data[: len(data) // 2], data[:-1], data + b"\0", rng.randbytes(len(data)), b"\xff\xfe"))
    return rng.choice((*_TEXTS, *rng.sample(_names(model), min(20, len(_names(model))))))


def _names(model: onnx.ModelProto) -> list[str]:
    nodes = [each for each in _messages(model) if isinstance(each, onnx.NodeProto)]
    return sorted({name for each in nodes for name in (*each.input, *each.output, each.name, each.op_type)})


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [each for each in _messages(model) if isinstance(each, onnx.NodeProto)] or [model.graph.node.add()]


def _outsourced(rng: random.Random, model: onnx.ModelProto) -> None:
    """Makes a tensor external data, with any location, offset and length."""
    tensors = [each for each in _messages(model) if isinstance(each, onnx.TensorProto)]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    for field in ("raw_data", "float_data", "int32_data", "int64_data"):
        tensor.ClearField(field)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, values in (("location", _LOCATIONS), ("offset", _NUMBERS), ("length", (*_NUMBERS, "x"))):
        if key == "location" or rng.random() < 0.4:
            tensor.external_data.add(key=key, value=str(rng.choice(values)))


def _nested(rng: random.Random, model: onnx.ModelProto) -> None:
    """Nests the graph in up to 40 levels of If."""
    for _ in range(rng.choice((1, 2, 10, 40))):
        inner = onnx.GraphProto()
        inner.CopyFrom(model.graph)
        del inner.input[:]
        node = onnx.helper.make_node("If", [rng.choice(_names(model) or ["c"])], [o.name for o in inner.output])
        for branch in ("then_branch", "else_branch"):
            node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH).g.CopyFrom(inner)
            inner = onnx.GraphProto(name="e", output=model.graph.output)
        del model.graph.node[:]
        model.graph.node.append(node)


def _recursive(rng: random.Random, model: onnx.ModelProto) -> None:
    """Adds a function that calls itself, directly or through another function."""
    names = rng.choice((["f"], ["f", "g"]))
    node = rng.choice(_nodes(model))
    for name, callee in zip(names, names[1:] + names[:1], strict=True):
        function = model.functions.add(name=name, domain="here", input=["a"], output=["b"])
        function.node.add(op_type=callee, domain="here", input=["a"], output=["b"])
        function.opset_import.add(domain="here", version=1)
        function.opset_import.extend(model.opset_import[:1])
    node.op_type, node.domain = "f", "here"
    if rng.random() < 0.8:
        model.opset_import.add(domain="here", version=1)


def _renamed(rng: random.Random, model: onnx.ModelProto) -> None:
    """Gives two values one name."""
    old, new = rng.choice(_names(model) or [""]), rng.choice(_names(model) or [""])
    for node in _nodes(model):
        for values in (node.input, node.output):
            for i, name in enumerate(values):
                if name == old:
                    values[i] = new


def _cyclic(rng: random.Random, model: onnx.ModelProto) -> None:
    node, other = rng.choice(_nodes(model)), rng.choice(_nodes(model))
    if node.input and other.output:
        node.input[rng.randrange(len(node.input))] = rng.choice(other.output)


def _operator(rng: random.Random, model: onnx.ModelProto) -> None:
    rng.choice(_nodes(model)).op_type = rng.choice(_OPERATORS)


def hostile(seed: int, index: int) -> bytes:
    """Returns model number `index`: first the corpus, then mutated models, some of them with changed bytes."""
    if index < len(corpus := sorted(CORPUS.glob("*.onnx"))):
        return corpus[index].read_bytes()
    rng = random.Random(f"{seed} {index}")
    model = onnx.load(rng.choice(SEEDS))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 10))):
        with contextlib.suppress(Exception):  # protobuf refuses this mutation, or the model is not valid any more
            mutate(rng, model)
    try:
        data = bytearray(model.SerializeToString())
    except Exception:
        return b""
    if index % 10 == 0 and data:
        for _ in range(rng.choice((1, 3, 20))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if index % 25 == 0:
        data = data[: rng.randrange(len(data) + 1)]
    return bytes(data)


# The stages of one model


def stages(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the name and the function of each stage. Stages named "stock" run stock ONNX Runtime only."""
    fast = path.with_name("fast.onnx")
    runs = False
    results: dict[bool, Result] = {}

    def stock() -> None:
        nonlocal runs
        runs = ort_dynq.verify(path, path).status != "failed"  # it may have no finite output

    def rewritten(exact: bool) -> None:
        try:
            results[exact] = rewrite(path, exact=exact)
            results[exact].save(fast)
        except ort_dynq.DynqError as error:
            if runs and " cannot be converted: " in str(error):
                raise AssertionError(error) from error
        else:
            onnx.load(fast, load_external_data=False)

    def compared(exact: bool) -> None:
        found = ort_dynq.verify(path, fast)
        if found.status == "failed":  # for example, onnx_ir merges an input and an output of the same name
            copy = path.with_name("fast.onnx.copy")
            ir.save(ir.load(path), copy)
            if ort_dynq.verify(path, copy).status == "failed":
                return
        assert not found.failure, found.failure
        assert found.status != "failed" or not exact, f"other results: {found.reason}"

    yield "inspect", lambda: command("inspect", path)
    yield "rewrite", lambda: command("rewrite", path, "-o", fast)
    yield "stock", lambda: refused(stock)
    for exact in (True, False):
        yield f"rewrite, {exact=}", functools.partial(rewritten, exact)
        if runs and exact in results and results[exact].report.rewritten:
            yield f"verify, {exact=}", functools.partial(compared, exact)
    if not runs:
        yield "verify", lambda: command("verify", path, path)
        yield "InferenceSession", lambda: refused(lambda: ort_dynq.InferenceSession(path))


def refused(function: Callable[[], Any]) -> None:
    """Runs the function, which may raise DynqError and the exceptions of onnxruntime."""
    try:
        function()
    except Exception as error:
        if not isinstance(error, ort_dynq.DynqError) and not type(error).__module__.startswith("onnxruntime"):
            raise


def command(*arguments: str | Path) -> None:
    """Runs the command line and checks its exit status: 0, 1 (verify only), or 2 with one line on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main([str(each) for each in arguments])
    assert status in ((0, 2) if arguments[0] != "verify" else (0, 1, 2, 3)), f"exit status {status}"
    if status == 2:
        assert err.getvalue().startswith("ort-dynq: error: "), err.getvalue()
        assert err.getvalue().count("\n") == 1, err.getvalue()
        assert not out.getvalue(), out.getvalue()
    else:
        assert not err.getvalue(), err.getvalue()


def examine(path: Path) -> Iterator[tuple[str, str]]:
    """Yields each stage twice: before it runs, with an empty text, and if it failed, with the reason."""
    for name, stage in stages(path):
        yield name, ""
        before, start = _megabytes(), time.process_time()
        try:
            stage()
        except Exception:
            yield name, traceback.format_exc()
            continue
        finally:
            left = {each.name for each in path.parent.iterdir()} - {path.name, "fast.onnx", "fast.onnx.copy", "link"}
        if not name.startswith("stock"):
            if time.process_time() - start > SECONDS:
                yield name, f"took {time.process_time() - start:.0f} s"
            if _megabytes() - before > MEGABYTES:
                yield name, f"took {_megabytes() - before:.0f} MB of memory"
            if left:
                yield name, f"left {sorted(left)}"


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def work(seed: int, first: int, folder: Path) -> None:
    """Examines models until the process is stopped, and reports every stage on stdout as a line of JSON."""
    sys.stdout.flush()
    report = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.chdir(folder)
    closing._SECONDS = 1e-3  # how long the command line times a model
    path = folder / "model.onnx"
    with contextlib.suppress(FileExistsError):
        (folder / "link").symlink_to("/etc/passwd")
    index = first
    while True:
        path.write_bytes(hostile(seed, index))
        for left in folder.glob("*fast*"):
            left.unlink()
        for stage, problem in examine(path):
            print(json.dumps((index, stage, problem)), file=report, flush=True)
        print(json.dumps((index, "done", "")), file=report, flush=True)
        index += 1


# The fuzzer


class Fuzzer:
    """Runs one worker process after the other and keeps the models that fail."""

    def __init__(self, seed: int, failures: Path) -> None:
        self.seed, self.failures = seed, failures
        self.inputs, self.crashes_of_onnxruntime = 0, 0
        self.problems: Counter[str] = Counter()

    def run(self, inputs: int, seconds: float) -> None:
        end, first = time.monotonic() + seconds, 0
        while first < inputs and time.monotonic() < end:
            first = self._worker(first, inputs, end)

    def _worker(self, first: int, inputs: int, end: float) -> int:
        """Runs a worker until it ends and returns the index of the next model."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = [sys.executable, __file__, "--worker", str(first), folder, "--seed", str(self.seed)]
            with (
                tempfile.TemporaryFile("w+", errors="replace") as stderr,
                subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=stderr, env=environment()) as process,
            ):
                assert process.stdout is not None
                index, stage = first, "start"
                try:
                    for index, stage, problem in _reports(process.stdout):
                        if problem:
                            self._failed(index, stage, problem)
                        elif stage == "done":
                            self.inputs += 1
                            if index + 1 >= inputs or time.monotonic() > end:
                                return index + 1
                    reason = f"the process ended with {process.wait()}"
                    stderr.seek(0)
                    reason = f"{stderr.read()[-4000:]}\n{reason}"
                except TimeoutError:
                    reason = "hangs"
                finally:
                    process.kill()
        if stage == "start":
            raise RuntimeError(f"a worker process did not start: {reason}")
        self.inputs += 1
        if stage.startswith("stock"):
            self.crashes_of_onnxruntime += 1
        else:
            self._failed(index, stage, reason)
        return index + 1

    def _failed(self, index: int, stage: str, problem: str) -> None:
        what = problem.strip().splitlines()[-1][:200]
        where = [line.strip() for line in problem.splitlines() if "/ort_dynq/" in line]
        kind = f"{stage}: {what} {where[-1] if where else ''}"
        if kind not in self.problems:
            self.failures.mkdir(parents=True, exist_ok=True)
            name = self.failures / f"{self.seed}_{index}"
            name.with_suffix(".onnx").write_bytes(hostile(self.seed, index))
            name.with_suffix(".txt").write_text(f"{stage}\n{problem}\n")
        self.problems[kind] += 1


def _reports(stdout: Any) -> Iterator[tuple[int, str, str]]:
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        buffer = b""
        while True:
            if not selector.select(SECONDS * 3):
                raise TimeoutError
            read = os.read(stdout.fileno(), 1 << 16)
            if not read:
                return
            *lines, buffer = (buffer + read).split(b"\n")
            for line in lines:
                index, stage, problem = json.loads(line)
                yield index, stage, problem


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(ort_dynq.__file__).parent.parent)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--inputs", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path, default=Path(tempfile.gettempdir()) / "hostile_models")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.seed, int(arguments.worker[0]), Path(arguments.worker[1]))
    fuzzer = Fuzzer(arguments.seed, arguments.failures)
    fuzzer.run(arguments.inputs, arguments.seconds)
    print(f"{fuzzer.inputs} models; {fuzzer.crashes_of_onnxruntime} of them crash stock ONNX Runtime")
    for kind, count in fuzzer.problems.most_common():
        print(f"{count:6} {kind}")
    if fuzzer.problems:
        print(f"the models are in {arguments.failures}")
    return int(bool(fuzzer.problems))


if __name__ == "__main__":
    sys.exit(main())
