"""The networks of packages, and OpenVINO as a contender of `python tests/bench networks`."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benching import run_developers, run_developers_json

from bench import convnets, network_contenders, networks
from ort_dynq import DynqError
from ort_dynq.tools.bench import openvino
from ort_dynq.tools.measuring.timing import Contender, ContenderError, Settings

GIVEN = ("networks", "--networks", "ppocr-cls", "--forms", "quantize")


class _Package:
    """A package with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def locate_file(self, file: str) -> Path:
        return self._folder / Path(file).name


@pytest.fixture
def _packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only PP-OCR's classifier is installed; a small network stands for it."""
    onnx.save(convnets.mobilenet("float", image=32, width=8), tmp_path / "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: _Package(tmp_path))
    image = np.zeros((1, 3, 32, 32), np.float32)
    network = network_contenders.NETWORKS["ppocr-cls"]
    monkeypatch.setitem(
        network_contenders.NETWORKS,
        "ppocr-cls",
        network.__class__(network.package, network.file, lambda: [{"x": image}], network.answers, network.unit),
    )


@pytest.mark.usefixtures("_packages")
def test_installed_networks() -> None:
    assert network_contenders.installed() == ("ppocr-cls",)
    found = networks.available()
    assert "ppocr-cls" in found
    assert "resnet" in found
    assert "ppocr-rec" not in found


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(DynqError, match="rapidocr-onnxruntime is not installed: run `pip install --no-deps rapid"):
        networks.bench_networks(Settings((1,), 0.01), names=["ppocr-rec"])


@pytest.mark.usefixtures("_packages")
def test_ratios_to_openvino(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """float32 takes turns with ours; a form that does not run is left out, and int8 needs nncf."""

    def contender(name: str, path: Path, feeds: dict[str, Any], threads: int) -> Contender:
        assert onnx.load(path).graph.input[0].name == "x"
        if "bfloat16" in name:
            raise ContenderError("no")
        return Contender(lambda: None, list(feeds.values()), has_threads=True)

    monkeypatch.setattr(openvino, "forms", lambda: list(openvino.FORMS))
    monkeypatch.setattr(openvino, "contender", contender)
    monkeypatch.setitem(sys.modules, "nncf", None)
    (timing,) = run_developers_json(capsys, *GIVEN)["timings"]
    assert timing["openvino"].keys() == {"float32"}
    assert 0 < timing["openvino"]["float32"] < 1
    lines = run_developers(capsys, *GIVEN).splitlines()
    assert any("OpenVINO float32" in line and "bfloat16" not in line for line in lines)
    assert any(line.startswith("ppocr-cls ") for line in lines)


@pytest.mark.usefixtures("_packages")
def test_without_openvino(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(openvino, "forms", list)
    (timing,) = run_developers_json(capsys, *GIVEN)["timings"]
    assert timing["openvino"] == {}
