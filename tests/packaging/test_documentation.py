"""The documentation agrees with the code: links, paths, commands, examples, messages, the generated reference."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import itertools
import re
import shlex
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import pytest
from bench import cli as developers

import ort_dynq
from ort_dynq import cli, documentation
from ort_dynq.operators import OPERATORS
from ort_dynq.rewriter import inspect

ROOT = Path(__file__).parents[2]
PACKAGE = Path(ort_dynq.__file__).parent
DOCS = PACKAGE / "docs"
CONTRIBUTING = ROOT / ".github" / "CONTRIBUTING.md"
SECURITY, CONDUCT = (ROOT / ".github" / name for name in ("SECURITY.md", "CODE_OF_CONDUCT.md"))
PAGES = sorted([ROOT / "README.md", CONTRIBUTING, SECURITY, CONDUCT, ROOT / "models" / "README.md", *DOCS.glob("*.md")])
SOURCES = "\n".join(
    path.read_text()
    for folder in (PACKAGE, ROOT / "ops")
    for path in sorted(folder.rglob("*"))
    if path.suffix in (".py", ".cc", ".h")
)


def page_id(path: Path) -> str:
    return path.name if path.parent == DOCS else str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if DOCS not in page.parents or DOCS in linked.parents:
            linked = Path(str(linked).replace(str(ROOT / "ort_dynq"), str(PACKAGE)))
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "pyproject.toml"], ids=page_id)
def test_no_address_of_a_repository(page: Path) -> None:
    """The project has no public repository yet. Once it has one, pyproject.toml names its addresses."""
    assert not re.search(r"https?://[^\s)>\"]*ort[-_]dynq", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_paths_in_the_repository(page: Path) -> None:
    """Paths that are written from the root of the repository exist."""
    for path in re.findall(r"`((?:ops|ort_dynq|tests|models|\.ci|\.github)/[^`\s]*)", page.read_text()):
        assert (ROOT / path).exists(), path


def test_architecture_lists_the_modules() -> None:
    """Each row of a folder's table names paths in this folder, and files in these paths. No module is missing."""
    page = (DOCS / "architecture.md").read_text().split("\n## Where things live\n")[1]
    for folder, table in re.findall(r"^### `(\w+)/`.*?\n(.*?)(?=^###|\Z)", page, re.MULTILINE | re.DOTALL):
        listed = set()
        for row in re.findall(r"^\| (`.*) \|$", table, re.MULTILINE):
            first, second = row.split(" | ")
            paths = [ROOT / folder / path for path in re.findall(r"`([^`]+)`", first)]
            listed |= {path.relative_to(ROOT / folder).parts[0] for path in paths}
            assert all(path.exists() for path in paths), row
            for name in re.findall(r"`([\w-]+\.(?:py|cc|h|html))`", second):
                assert any((path / name).exists() for path in paths), name
        modules = {path.name for path in (ROOT / folder).iterdir() if path.suffix != ".so"}
        assert modules - listed <= {"__main__.py", "py.typed", "__pycache__"}, modules - listed


def test_long_files_give_the_reason() -> None:
    """As CONTRIBUTING.md says, a source file of more than 450 lines says at its top why it is not split."""
    paths = [path for folder in ("ops", "ort_dynq", "tests", "models") for path in (ROOT / folder).rglob("*")]
    texts = {path: path.read_text() for path in paths if path.suffix in (".py", ".cc", ".h")}
    long = {path for path, text in texts.items() if len(text.splitlines()) > 450}
    reason = re.compile(r"^(//|#)? ?More than 450 lines: ", re.MULTILINE)
    assert long
    assert {path for path, text in texts.items() if reason.search(text[:2000])} == long


def test_every_page_is_found_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(ort_dynq/docs/([\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")}


def test_site_lists_every_page() -> None:
    """`.ci/site` writes no site without one of them."""
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / ".ci" / "site.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(DOCS) for kind in ("*.md", "*.ipynb") for path in DOCS.rglob(kind)}
    names = {path.with_suffix(".md").as_posix() for path in pages}
    assert sorted(listed) == sorted(
        names | {"index.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"}
    )


def test_operators_page_is_up_to_date() -> None:
    is_up_to_date = documentation.PAGE.read_text() == documentation.operators_page()
    assert is_up_to_date, "run `python -m ort_dynq.documentation`"


@pytest.fixture(scope="module")
def api() -> Any:
    """The script .ci/api as a module."""
    loader = importlib.machinery.SourceFileLoader("api", str(ROOT / ".ci" / "api"))
    spec = importlib.util.spec_from_loader("api", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_python_page_is_up_to_date(api: Any) -> None:
    is_up_to_date = api.PAGE.read_text() == api.page()
    assert is_up_to_date, "run `.ci/api`"


def test_python_page_has_all_public_names_and_arguments(api: Any) -> None:
    page = api.PAGE.read_text()
    named, seen = 0, set()
    for path in api.MODULES:
        for name in importlib.import_module(path).__all__:
            item = getattr(importlib.import_module(path), name)
            if not callable(item) or item in seen:
                continue
            seen.add(item)
            section = page.split(f"### `{path}.{name}`\n")[1].split("\n### ")[0]
            for argument in signature(item).parameters if isfunction(item) else ():
                assert len(re.findall(rf"\b{argument}\b", section)) > 1, f"{path}.{name}: {argument}"
                named += 1
    assert named > 40


def test_documents_use_public_modules(api: Any) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "README.md", *DOCS.rglob("*.md"), *DOCS.rglob("*.py")))
    used = {*re.findall(r"from (ort_dynq[\w.]*) import", text), *re.findall(r"import (ort_dynq\.[\w.]+)", text)}
    assert used <= {*api.MODULES}


def test_operators_page_is_complete() -> None:
    page = documentation.operators_page()
    for operator in OPERATORS.values():
        section = page.split(f"\n### {operator.name}\n")[1].split("\n### ")[0].split("\n## ")[0]
        for each in (*operator.inputs, *operator.outputs, *operator.attributes):
            assert f"| `{each.name}` |" in section
        assert operator.formula in section
        table = section.split("\n| types of ")[1].splitlines()[2:]
        rows = [[cell.strip().split(", ") for cell in row.strip("|").split("|")] for row in table]
        listed = sorted(types for row in rows for types in itertools.product(*row))
        assert listed == sorted((*each.inputs, *each.outputs) for each in operator.signatures)


RULES = re.findall(r"^\| `ort-dynq inspect (\S+)` \| (\w+) \|$", (DOCS / "rules.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("model", "operator"), RULES)
def test_rules_can_be_seen(model: str, operator: str) -> None:
    assert operator in {finding.operator for finding in inspect(ROOT / model).rewritten}


def test_every_operator_and_rule_is_in_the_rules() -> None:
    page = (DOCS / "rules.md").read_text()
    assert len(RULES) > 10
    assert {*OPERATORS} <= {*re.findall(r"\w+", page)}


EXAMPLES = (
    r"\.\.\.",
    r"ORT_DYNQ_ISA is 'sse9'",
    r"\(assumed --shape x=2x8",
    r"libort_dynq\.so",
    "native already",
    r"\b[0-9]\b",
    r"(?<=expected )u?int8.*",
)


@pytest.mark.parametrize("page", ["rules.md", "troubleshooting.md"])
def test_messages_are_in_the_code(page: str) -> None:
    """Names, types and numbers in the messages are examples and are not compared."""
    text = (DOCS / page).read_text()
    text = text.split("## What stays")[1] if page == "rules.md" else text
    of_onnxruntime = (
        "is not a registered function/op",
        "Domain already set in registry",
        "has input size 2 not in range",
        "Function inlining exceeded",
    )
    messages = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(messages) > 8
    code = re.sub(r'"\s*\n\s*f?"', "", SOURCES)
    for message in messages:
        if any(each in message for each in of_onnxruntime):
            continue
        for part in filter(None, map(str.strip, re.split("|".join(EXAMPLES), message))):
            assert part in code, message


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_blocks(page: Path) -> None:
    """The Python blocks parse, and ort_dynq has the names that they use."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ort_dynq":
                assert hasattr(ort_dynq, node.attr)


def commands() -> list[str]:
    programs = "(?:ort-dynq|python tests/bench)"
    quoted = rf"`({programs} [^`]*)`|^(?:.*?&& )?({programs} .*)$"
    return sorted({"".join(found) for page in PAGES for found in re.findall(quoted, page.read_text(), re.MULTILINE)})


@functools.cache
def parser_of(module: Any) -> Any:
    return module.parser()


@pytest.mark.parametrize("command", commands())
def test_commands(command: str) -> None:
    """Every command parses, both with and without the parts in brackets."""
    for text in (re.sub(r"\[[^\]]*\]", "", command), command.replace("[", "").replace("]", "")):
        program, _, rest = text.replace("python tests/bench", "developers").partition(" ")
        if program == "developers":
            assert parser_of(developers).parse_args(shlex.split(rest)).run
            continue
        arguments = [word for word in shlex.split(rest) if word != "…"]
        if arguments and arguments[-1] == "--shape":
            arguments.append("x=1x128x768")
        if len(arguments) < 2 and arguments[0] in {each.name for each in cli.COMMANDS} - {"doctor"}:
            continue  # a command is named, not shown
        if "--print-completion" in arguments:
            continue
        assert parser_of(cli).parse_args(arguments).run


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_tables_are_tables(page: Path) -> None:
    """A table without a header, or rows of another length, are text on GitHub."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for table in re.findall(r"^\|.*(?:\n\|.*)*", text, re.MULTILINE):
        rows = table.splitlines()
        assert re.fullmatch(r"\|[-:|]+\|", rows[1]), rows[0]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, rows[0]


CPU = re.compile(r"[Ff]amily\s+\d+,\s+model\s+\d+|Neoverse N1")
TIMES = re.compile(r"\b(ms|us|ns|tokens a\s+second|faster|speed|ratio|gains?)\b|µs|tokens/s", re.IGNORECASE)
ACCURACY = re.compile(r"\b(dB|cosine|error|perplexity)\b")


def tables_without_cpu(text: str) -> list[str]:
    """The headers of the tables of figures that name no CPU, neither themselves nor the section above them. A table
    of figures has a last column that is aligned to the right. Those of accuracy, which say so, need none, if neither
    they nor the paragraph above them has times."""
    found = []
    for section in re.split(r"^#+ .*$", text, flags=re.MULTILINE):
        for table in re.finditer(r"^\|.*\n\|[-:|]*--:\|\n(?:\|.*\n)+", section, re.MULTILINE):
            caption = section[: table.start()].rstrip().rpartition("\n\n")[2]
            is_timed = TIMES.search(caption + table[0]) or not ACCURACY.search(caption + table[0])
            if is_timed and not CPU.search(section[: table.end()]):
                found.append(table[0].splitlines()[0])
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_tables_of_times_name_their_cpu(page: Path) -> None:
    """Nobody can compare a time with their own without family and model: "Zen 3" or "AVX2" alone say little."""
    assert tables_without_cpu(page.read_text()) == []


def test_changelog_has_the_version() -> None:
    assert f"\n## {ort_dynq.__version__}\n" in (DOCS / "CHANGELOG.md").read_text()
    assert f"\nversion: {ort_dynq.__version__}\n" in (ROOT / ".github" / "CITATION.cff").read_text()


def test_diffs_in_contributing() -> None:
    """Every added line of a diff is a line of the file that the diff names."""
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    diffs = re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(diffs) == 5
    for diff in diffs:
        lines: set[str] = set()
        for line in diff.splitlines():
            if line.startswith("+++ b/"):
                lines = set((ROOT / line.removeprefix("+++ b/")).read_text().splitlines())
            elif line.startswith("+"):
                assert line[1:] in lines, line
