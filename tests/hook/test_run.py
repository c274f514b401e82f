"""`ort-dynq run`: processes of every start method, what the program sees of it, its exit status, and the record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ort_dynq import DynqError, cache
from ort_dynq.cli import main
from ort_dynq.hook import program, sessions
from ort_dynq.hook.options import RECORD, VARIABLE, HookOptions, ProcessOptions, matches
from ort_dynq.hook.sessions import Opened

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "torch_token" / "model.onnx"
IS_POSIX = os.name == "posix"

OPEN = f"""
import onnxruntime as ort, os

def opened(_=None):
    session = ort.InferenceSession({str(MODEL)!r})
    return any(key.startswith("ort_dynq.") for key in session.get_modelmeta().custom_metadata_map)
"""


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of all tests, which rewrite the model once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache(shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, str(shared_cache))
    monkeypatch.chdir(tmp_path)


def run(*words: str, expected: int = 0, **environment: str) -> tuple[str, str]:
    """Runs `ort-dynq run` with the Python of the tests. Returns stdout and stderr."""
    found = subprocess.run(
        [sys.executable, "-m", "ort_dynq", "run", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert found.returncode == expected, found.stderr
    lines = [line for line in found.stderr.splitlines() if "cpuid_info warning" not in line]  # of ONNX Runtime on ARM
    return found.stdout, "\n".join(lines)


def written(text: str, name: str = "app.py") -> str:
    Path(name).write_text(text)
    return name


STARTS = {
    "subprocess": "import subprocess, sys; subprocess.run([sys.executable, 'child.py'], check=True)",
    "shell": "import os, sys; assert not os.system(sys.executable + ' child.py')",
    **{
        method: "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "from child import opened\n"
        "if __name__ == '__main__':\n"
        f"    with ProcessPoolExecutor(1, get_context({method!r})) as pool:\n"
        "        print(all(pool.map(opened, range(2))))\n"
        for method in ("spawn", "fork", "forkserver")
    },
    "thread": "from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(8) as pool: print(all(pool.map(opened, range(8))))",
}


@pytest.mark.parametrize("start", STARTS)
def test_processes_of_every_start_method(start: str) -> None:
    if start in ("fork", "forkserver") and not hasattr(os, "fork"):
        pytest.skip("there is no fork")
    written(OPEN + "if __name__ == '__main__': print(opened())\n", "child.py")
    text = STARTS[start] if "child" in STARTS[start] else OPEN + STARTS[start]
    out, error = run("--report", "run.json", "--", sys.executable, written(text))
    assert out == "True\n"
    report = json.loads(Path("run.json").read_text())
    assert {each["state"] for each in report["sessions"]} == {"rewritten"}
    assert len(report["sessions"]) == {"spawn": 2, "fork": 2, "forkserver": 2, "thread": 8}.get(start, 1)
    assert error.startswith("ort-dynq: ")
    assert len(error.splitlines()) == 1


def test_ways_to_name_a_program() -> None:
    written("import sys\n" + OPEN + "print(opened(), sys.argv[1:])\n")
    script = written(f"#!{sys.executable}\n" + Path("app.py").read_text(), "script")
    os.chmod(script, 0o755)
    ways = [
        ["app.py", "-q", "--x"],
        ["--fuse", "--min-snr", "20", "-m", "app", "-q", "--x"],
        *([["--", "./script", "-q", "--x"]] if IS_POSIX else []),
    ]
    for way in ways:
        assert run(*way)[0] == "True ['-q', '--x']\n", way


def test_quiet_json_and_verbose() -> None:
    written(OPEN + "print(opened())\n")
    out, error = run("--json", "-q", "app.py")
    first, _, rest = out.partition("\n")
    assert (first, error) == ("True", "")
    assert json.loads(rest)["sessions"][0]["state"] == "rewritten"
    _, error = run("-v", "app.py")
    assert f"ort_dynq.run: {MODEL}: rewritten: " in error


def test_exact_keep_and_what_stays() -> None:
    written(OPEN + "print(opened())\n")
    out, error = run("--keep", "model.onnx", "app.py")
    assert (out, error) == ("False\n", "ort-dynq: 1 session: 1 left alone (kept)")
    assert run("--exact", "app.py")[0] == "True\n"
    assert "no sessions of ONNX Runtime" in run("--", sys.executable, "-c", "pass")[1]
    assert "-I, -E or -S" in run("--", sys.executable, "-I", "app.py")[1]


def test_exit_status() -> None:
    run("--", sys.executable, "-c", "raise SystemExit(7)", expected=7)
    if IS_POSIX:
        command = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        run("--", sys.executable, "-c", command, expected=128 + signal.SIGKILL)


@pytest.mark.skipif(not IS_POSIX, reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signals_reach_the_program(name: str) -> None:
    number = getattr(signal, name)
    text = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('ended', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "ort_dynq", "run", "-q", written(text)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup and jobs in the background ignore some
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "ended\n"
        assert process.wait(60) == 5


@pytest.mark.skipif(not IS_POSIX, reason="signals of POSIX")
def test_ignored_signals_stay_ignored() -> None:
    text = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    program = f"trap '' HUP; '{sys.executable}' -m ort_dynq run -q -- '{sys.executable}' -c '{text}'"
    assert subprocess.check_output(["sh", "-c", program], text=True) == "True\n"


@pytest.mark.parametrize("other", [pytest.param("none", marks=pytest.mark.exhaustive), "path", "fails"])
def test_another_sitecustomize_is_called(other: str) -> None:
    environment = {}
    if other != "none":
        Path("mine").mkdir()
        Path("mine", "sitecustomize.py").write_text(
            "import sys\nsys.mine = __name__, __file__\n"
            + ("raise RuntimeError('planned')\n" if other == "fails" else "")
        )
        environment["PYTHONPATH"] = str(Path("mine").absolute())
    written(OPEN + "import sys\nprint(opened(), getattr(sys, 'mine', None), 'startup' in str(sys.path))\n")
    out, error = run("app.py", **environment)
    mine = None if other == "none" else ("sitecustomize", str(Path("mine").absolute() / "sitecustomize.py"))
    assert out == f"True {mine} False\n"
    assert ("planned" in error) == (other == "fails")  # as Python shows it


def test_a_python_without_ort_dynq() -> None:
    blocked = "import sys\nsys.modules['ort_dynq'] = None\n"
    written(blocked + OPEN + "print(opened())\n")
    out, error = run("app.py")
    assert out == "False\n"
    assert "opens its models as before" in error
    assert "-m pip install ort_dynq" in error


def test_a_program_that_installs_itself() -> None:
    written("import ort_dynq\nsessions = ort_dynq.install(keep=['*'])\n" + OPEN + "print(opened(), len(sessions))\n")
    assert run("app.py")[0] == "False 1\n"


def test_runs_inside_runs() -> None:
    written(OPEN + "print(opened(), os.environ['PYTHONPATH'].count('startup'))\n")
    out, error = run("--", sys.executable, "-m", "ort_dynq", "run", "--keep", "*", "app.py")
    assert out == "False 1\n"
    assert "1 left alone (kept)" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no program to run"),
        (["--"], "there is no program to run"),
        (["no-such-program"], "there is no program no-such-program"),
        (["--exact", "--fuse", "app.py"], "not allowed with"),
        (["--exact", "--quantize", "--", "app.py"], "give one of them"),
        (["--min-agreement", "2", "app.py"], "not a share"),
        (["--report", "no/such/run.json", "app.py"], "there is no folder"),
        (["--report", ".", "app.py"], "is a folder"),
        (["--unknown", "app.py"], "unrecognized arguments: --unknown"),
    ],
)
def test_wrong_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    written("print('runs')")
    assert main(["run", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_patterns_of_quantize() -> None:
    from ort_dynq.cli import command, parser
    from ort_dynq.cli import run as run_command

    def words(*given: str) -> list[str]:
        return run_command.with_separator(given, command.subparser(parser(), "run"))

    assert words("--quantize", "python", "app.py") == ["--quantize", "--", "python", "app.py"]
    assert words("--quantize", "det*.onnx", "python") == ["--quantize", "det*.onnx", "--", "python"]
    assert words("--quantize", "det.onnx", "-m", "app") == ["--quantize", "det.onnx", "--", "-m", "app"]
    assert words("--min-snr", "20", "app", "-m") == ["--min-snr", "20", "--", "app", "-m"]
    assert words("-q", "--", "app", "-m") == ["-q", "--", "app", "-m"]
    assert matches("/some/det.onnx", ("det*",))
    assert matches("/some/det.onnx", ("/some/*",))
    assert not matches("/some/det.onnx", ("rec*",))


def test_options_travel_in_the_environment() -> None:
    told = ProcessOptions(HookOptions(fuse=True, keep=("a*", "b"), quantize=("*",), min_snr=12.5), "file", 2)
    assert ProcessOptions.of(told.variables()) == told
    assert ProcessOptions.of({}) is None
    for text in ("[", "[]", '{"options": {"no": 1}, "verbosity": 0}', '{"options": {"inputs": 0}}', "[" * 100_000):
        with pytest.raises(DynqError):
            ProcessOptions.of({VARIABLE: text, RECORD: ""})


def test_what_other_processes_write_to_the_record(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.touch()
    found = sessions.Sessions(str(record))
    first = Opened("a.onnx", "measured")
    found.add(first)
    found.add(Opened("b.onnx", "unchanged", "nothing to rewrite", process=1))
    first.state = "quantized"
    found.changed(first)
    with record.open("a") as file:
        file.write('{"process": 7, "problem": "some"}\n{"model": 3\n[]\n"text"\n{"model": "c", "other": 1}\n\\udcff\n')
    read, others = sessions.read(str(record))
    assert [(each.model, each.state) for each in read] == [("a.onnx", "quantized"), ("b.onnx", "unchanged")]
    assert others == [{"process": 7, "problem": "some"}]
    record.unlink()
    found.add(Opened("d.onnx"))  # the run has ended
    assert not record.exists()
    done = program.Run(0, tuple(read), 2, ("some", "some"))
    assert done.line == (
        "2 sessions in 2 processes: 1 with int8 instead of float; 1 unchanged (nothing to rewrite); some"
    )
    assert json.loads(json.dumps(done.to_dict()))["processes"] == 2


def test_python_starts_as_fast_as_without(tmp_path: Path) -> None:
    """A process that never imports onnxruntime loads nothing of ours."""
    environment: dict[str, Any] = {**os.environ, **ProcessOptions(HookOptions(), "").variables()}
    environment["PYTHONPATH"] = str(program.STARTUP)
    text = "import sys; print([each for each in ('json', 're', 'ort_dynq', 'dataclasses') if each in sys.modules])"
    without = subprocess.check_output([sys.executable, "-c", text], text=True)
    assert subprocess.check_output([sys.executable, "-c", text], env=environment, text=True) == without
