"""The package as docs/architecture.md has it: imports go down the order of its folders, never up; operators are listed
in the vocabulary alone; a rule has a test of its name.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import onnxruntime.capi.onnxruntime_pybind11_state as state
import pytest

import ort_dynq
from ort_dynq.operators import OPERATORS
from ort_dynq.rewriter import rewrite

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ort_dynq"
IMPORTED = Path(ort_dynq.__file__).parent  # in the clone only if the installation is editable
PUBLIC = "__init__"  # ort_dynq/__init__.py: its public names load the modules above it on first use
DOORS = ("accuracy", "bench", "doctor", "genai", "report", "verification")  # the public names of tools
# The sets of operators, and the steps of programs, some of which have names of operators.
VOCABULARIES = (PACKAGE / "rewriter" / "analysis" / "standard.py", PACKAGE / "operators" / "program.py")
OPERATOR_NAMES = {schema.name for schema in state.get_all_operator_schema()} | {*OPERATORS}
MAX_NAMES = 3  # by which an expression differs from sets of the vocabulary


def order() -> list[str]:
    """The modules and folders from the ground up: the first column of the table in docs/architecture.md."""
    page = (PACKAGE / "docs" / "architecture.md").read_text()
    table = page.split("\n### `ort_dynq/`")[1].split("\n###")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    names = [name.split("/")[0].removesuffix(".py") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return [name for name in dict.fromkeys(names) if name != "docs"]


def files() -> Iterator[Path]:
    return (path for path in sorted(PACKAGE.rglob("*.py")) if "docs" not in path.relative_to(PACKAGE).parts)


def imported(path: Path, tree: ast.AST) -> set[Path]:
    """The files of the package that a file imports anywhere: in functions and for type annotations, too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.add(resolved(ROOT, alias.name.split("."), None))
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else ROOT
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                found.add(resolved(base, parts, alias.name))
    return {each for each in found if each is not None} - {path}


def resolved(base: Path, parts: list[str], name: str | None) -> Path | None:
    """The file that defines `name` of a module; None if that is no file of the package."""
    folder = base.joinpath(*parts)
    for candidate in ([] if name is None else [folder / f"{name}.py", folder / name / "__init__.py"]) + [
        folder.with_suffix(".py"),
        folder / "__init__.py",
    ]:
        if candidate.is_file() and PACKAGE in candidate.parents:
            return candidate
    return None


def part(path: Path) -> str:
    """The folder or module of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in files()}


@functools.cache
def imports() -> dict[Path, set[Path]]:
    return {path: imported(path, tree) for path, tree in trees().items()}


def test_order_is_complete() -> None:
    assert {*order()} == {part(path) for path in imports()}


def test_imports_go_down() -> None:
    ranks = {name: rank for rank, name in enumerate(order())}
    upward = defaultdict(set)
    for path, targets in imports().items():
        for target in targets:
            if ranks[part(target)] > ranks[part(path)]:
                upward[str(path.relative_to(PACKAGE))].add(str(target.relative_to(PACKAGE)))
    assert not upward


def test_imports_between_the_folders_of_the_rewriter_go_down() -> None:
    page = (PACKAGE / "docs" / "architecture.md").read_text()
    rooms = list(dict.fromkeys(re.findall(r"^\| `rewriter/(\w+)/`", page, re.MULTILINE)))
    room_of = {path: path.parent.name for path in imports() if path.parent.parent == PACKAGE / "rewriter"}
    assert {*rooms} == {*room_of.values()}
    assert [
        f"{path.relative_to(PACKAGE)} imports {target.relative_to(PACKAGE)}"
        for path, room in room_of.items()
        for target in imports()[path] & room_of.keys()
        if rooms.index(room_of[target]) > rooms.index(room)
    ] == []


def test_the_product_does_not_import_the_tools() -> None:
    """The public modules only name what users import; nothing else may import these."""
    doors = {PACKAGE / f"{name}.py" for name in DOORS}
    assert all(imports()[path] for path in doors)
    assert [
        f"{path.relative_to(PACKAGE)} imports {target.relative_to(PACKAGE)}"
        for path, targets in imports().items()
        for target in targets
        if (part(target) == "tools" and part(path) not in ("tools", "cli", PUBLIC, *DOORS)) or target in doors
    ] == []


def test_no_circles_of_files() -> None:
    graphlib.TopologicalSorter(imports()).prepare()  # raises a CycleError, which names the files


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("from ..bench import models", "tools/bench/models.py"),
        ("from ..verification import verify", "tools/verification/__init__.py"),
        ("def f():\n    from .layers import Layers", "tools/accuracy/layers.py"),
        ("if TYPE_CHECKING:\n    from ...cli.render import table", "cli/render.py"),
        ("from ... import rewrite", "__init__.py"),
        ("from ... import kernels", "kernels.py"),
        ("import ort_dynq.cli.render", "cli/render.py"),
        ("from ort_dynq.tools.report import page", "tools/report/page.py"),
    ],
)
def test_imports_are_found(text: str, target: str) -> None:
    assert imported(PACKAGE / "tools" / "accuracy" / "outputs.py", ast.parse(text)) == {PACKAGE / target}


def test_imports_of_others_are_not_found() -> None:
    text = "import numpy\nfrom onnx import helper"
    assert imported(PACKAGE / "tools" / "accuracy" / "outputs.py", ast.parse(text)) == set()


def lists_of_operators(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Yields the line and the operators of each list of operators that is not made of sets of the vocabulary.

    A list is a collection, the arguments of a call, or an expression of these. The values of tables are none: they
    belong to their keys.
    """
    lists, inner = list[tuple[int, list[ast.expr]]](), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            inner.update(node.values)
            continue
        parts = node.args if isinstance(node, ast.Call) else elements(node)
        if parts and node not in inner:
            lists.append((node.lineno, parts))
        inner.update(each for each in parts if not isinstance(each, ast.Call))
    for line, leaves in lists:
        while any(map(elements, leaves)):
            leaves = [part for each in leaves for part in elements(each) or [each]]
        names = [each.value for each in leaves if isinstance(each, ast.Constant) and each.value in OPERATOR_NAMES]
        given = [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in leaves]
        if len(names) > (MAX_NAMES if any(map(str.isupper, given)) else 1):
            yield line, names


def elements(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return node.elts
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [node.value] if isinstance(node, ast.AugAssign | ast.Starred) else []


def test_operators_are_listed_in_the_vocabulary_alone() -> None:
    assert [
        f"{path.relative_to(PACKAGE)}:{line}: {', '.join(names)}"
        for path, tree in trees().items()
        if path not in VOCABULARIES
        for line, names in lists_of_operators(tree)
    ] == [], "name sets of rewriter/analysis/standard.py in place of these operators"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('node.op_type in ("Add", "Sub")', 2),
        ('X = frozenset({"Add", "Sub"})', 2),
        ('producer_of(value, "Add", "Sub")', 2),
        ('producer_of(value, *("Add", "Sub"))', 2),
        ('X = MOVES - {"Split"} | {"Add", "Sub"} | {"Mul"}', 4),
        ('X = (*MOVES, "Add", "Sub", "Mul", "QuantizedMatMul")', 4),
        ('X |= {"Add", "Sub"} | {"Mul", "Div"}', 4),
        ('X = MOVES - {"Split"} | {"Add", "Sub"}', 0),
        ('X = {"Add": ("Tanh", "Sub"), "Sub": 1}', 0),
        ('X = [call("Add", call("Sub", x)), call("Mul", x)]', 0),
        ('X = ("Add", "no operator")', 0),
    ],
)
def test_lists_of_operators_are_found(text: str, count: int) -> None:
    assert [len(names) for _, names in lists_of_operators(ast.parse(text))] == ([count] if count else [])


def test_modules_of_the_rewriter_have_tests_of_their_names() -> None:
    """The test of a rule stands under its name. Modules that only read parts of a form for others may have none."""
    modules = {path.stem for path in (PACKAGE / "rewriter").rglob("*.py")} - {"__init__"}
    tests = {path.stem.removeprefix("test_") for path in (PACKAGE.parent / "tests").rglob("test_*.py")}
    assert len(modules & tests) >= 0.9 * len(modules), f"modules without a test: {sorted(modules - tests)}"


def test_names_of_test_files_are_unique() -> None:
    """pytest imports a file of a folder without __init__.py under its name alone. tests/bench/ is a package."""
    files = (PACKAGE.parent / "tests").rglob("test_*.py")
    names = [path.name for path in files if not (path.parent / "__init__.py").exists()]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


def is_stop(code: CodeType) -> bool:
    """Whether a reader stops at a function: not at a property, nor at what answers questions about the model."""
    path = Path(code.co_filename)
    if IMPORTED not in path.parents or path.parent.name == "analysis" or path.name == "runtime.py":
        return False
    return code.co_name[0] != "<" and "@property" not in path.read_text().splitlines()[code.co_firstlineno - 1]


def test_the_way_to_a_product_is_short() -> None:
    """From `_match` in products/float_matmul.py to what it recognizes, for a product with torchao's chain before it."""
    start = IMPORTED / "rewriter" / "products" / "float_matmul.py"
    called, found = set[CodeType](), list[set[CodeType]]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call":
            is_start = code.co_name == "_match" and code.co_filename == str(start)
            called.difference_update(called if is_start else ())
            called.add(code)
        elif event == "return" and argument is not None and code.co_name == "_match" and code.co_filename == str(start):
            found.append({*called})

    sys.setprofile(note)
    try:
        rewrite(PACKAGE.parent / "models" / "encoder_torchao" / "model.onnx")
    finally:
        sys.setprofile(None)
    after_first = found[1:]  # the first one makes what all of them share: the forms of all values
    stops = max(({each for each in codes if is_stop(each)} for codes in after_first), key=len)
    assert len(stops) <= 60
    assert len({each.co_filename for each in stops}) <= 12
