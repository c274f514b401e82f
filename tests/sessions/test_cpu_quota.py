"""CPU quotas of containers: fake trees of cgroups v1 and v2, and sessions with no more threads than they allow."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime as ort
import pytest
from helpers import parse

import ort_dynq
from ort_dynq import cli, runtime, system
from ort_dynq.cgroups import cpu_quota
from ort_dynq.tools.measuring.timing import machine

V2 = "29 23 0:26 {} {} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 32 0:30 {} {} rw shared:15 - cgroup cgroup rw,cpu,cpuacct"
OTHER_V1 = "34 32 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"
MODEL = parse("float[1] x", "float[1] y", "y = Abs(x)")


def tree(root: Path, mounts: list[str], groups: list[str], files: dict[str, str]) -> Path:
    """Writes the files of a fake root."""
    named = {"proc/self/mountinfo": "\n".join(mounts), "proc/self/cgroup": "\n".join(groups), **files}
    for name, text in named.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "quota"),
    [
        pytest.param(
            *([V2.format("/", "/sys/fs/cgroup")], ["0::/"], {"sys/fs/cgroup/cpu.max": "400000 100000"}, 4.0),
            id="v2: a container with a namespace of its own",
        ),
        pytest.param(
            [V2.format("/", "/sys/fs/cgroup")],
            ["0::/a/b/c"],
            {
                "sys/fs/cgroup/a/cpu.max": "150000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/b/c/cpu.max": "max 100000",
            },
            1.5,
            id="v2: nested, the smallest is not the innermost",
        ),
        pytest.param(
            *([V2.format("/", "/sys/fs/cgroup")], ["0::/a"], {"sys/fs/cgroup/a/cpu.max": "max 100000"}, None),
            id="v2: no limit",
        ),
        pytest.param(
            *([V2.format("/", "/sys/fs/cgroup")], ["0::/../other"], {"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
            id="v2: a group outside of the namespace",
        ),
        pytest.param(
            [OTHER_V1, V1.format("/docker/1f", "/sys/fs/cgroup/cpu,cpuacct")],
            ["5:cpuset:/docker/1f", "4:cpu,cpuacct:/docker/1f", "0::/"],
            {
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000",
                "sys/fs/cgroup/cpuset/cpu.cfs_quota_us": "1",
                "sys/fs/cgroup/cpuset/cpu.cfs_period_us": "100000",
            },
            5.0,
            id="v1: the group of the container is the root of the mounted tree",
        ),
        pytest.param(
            [V1.format("/", "/sys/fs/cgroup/my\\040cpu")],
            ["4:cpuacct,cpu:/kube/pod"],
            {
                "sys/fs/cgroup/my cpu/kube/pod/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/my cpu/kube/pod/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/my cpu/kube/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/my cpu/kube/cpu.cfs_period_us": "100000",
            },
            2.0,
            id="v1: nested, without a limit of its own",
        ),
        pytest.param(
            [V1.format("/", "/v1"), V2.format("/", "/v2")],
            ["4:cpu:/a", "0::/a"],
            {"v1/a/cpu.cfs_quota_us": "300000", "v1/a/cpu.cfs_period_us": "100000", "v2/a/cpu.max": "max 100000"},
            3.0,
            id="both versions",
        ),
        pytest.param([], [], {}, None, id="no groups"),
        pytest.param(
            *(["nonsense", V2.format("/", "/g")], ["x", "0::/a"], {"g/a/cpu.max": "many 0"}, None), id="nonsense"
        ),
    ],
)
def test_quota(
    mounts: list[str], groups: list[str], files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert cpu_quota(tree(tmp_path, mounts, groups, files)) == quota


def test_quota_without_proc(tmp_path: Path) -> None:
    """Other systems than Linux."""
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "affine", "allowed", "cores"),
    [(4.0, 128, 4, 4), (1.9, 128, 1, 1), (0.5, 2, 1, 1), (None, 8, 0, 8), (8.0, 8, 0, 8), (200.0, 8, 0, 8)],
)
def test_cores(quota: float | None, affine: int, allowed: int, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole cores of a quota, at least one; a quota of all cores is none."""
    monkeypatch.setattr(system, "cpu_quota", lambda: quota)
    monkeypatch.setattr(system, "_affine_cores", lambda: affine)
    assert (system.quota_cores(), system.cores()) == (allowed, cores)


@pytest.fixture
def quota_of_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "cpu_quota", lambda: 3.0)
    monkeypatch.setattr(system, "_affine_cores", lambda: 16)


def test_sessions_within_the_quota(quota_of_3: None) -> None:
    assert ort_dynq.InferenceSession(MODEL).get_session_options().intra_op_num_threads == 3
    assert runtime.session_options().intra_op_num_threads == 3
    assert runtime.session_options(threads=5).intra_op_num_threads == 5
    options = ort.SessionOptions()
    assert ort_dynq.InferenceSession(MODEL, options).get_session_options().intra_op_num_threads == 3
    assert options.intra_op_num_threads == 0  # the caller may open others with them
    options.intra_op_num_threads = 7
    assert ort_dynq.InferenceSession(MODEL, options).get_session_options().intra_op_num_threads == 7


def test_benchmarks_say_it(quota_of_3: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine().cores_and_load.startswith("3 cores (the CPU quota of this container)")
    monkeypatch.setattr(system, "cpu_quota", lambda: None)
    assert machine().cores_and_load.startswith("16 cores")
    assert "quota" not in machine().cores_and_load


def test_sessions_without_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "cpu_quota", lambda: None)
    assert ort_dynq.InferenceSession(MODEL).get_session_options().intra_op_num_threads == 0


def test_doctor_in_a_container(quota_of_3: None, capsys: pytest.CaptureFixture[str]) -> None:
    """It counts the threads that ONNX Runtime starts."""
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "ONNX Runtime will start" in text
    assert "threads, the quota allows 3: intra_op_num_threads=3" in text
    if hasattr(os, "sched_getaffinity"):
        started = int(text.split("will start ")[1].split()[0])
        assert 1 <= started <= (os.cpu_count() or 1)
