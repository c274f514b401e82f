"""What the package's logger says, and how results show themselves."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
from genai_folders import LLAMA
from rewriting import MODELS

import ort_dynq
from ort_dynq.accuracy import Reference, measure
from ort_dynq.rewriter import Finding
from ort_dynq.tools import genai

TORCHAO = MODELS / "torchao_8da8w" / "model.onnx"


def test_a_rewrite_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="ort_dynq"):
        result = ort_dynq.rewrite(TORCHAO, exact=True)
        result.save(tmp_path / "fast.onnx")
    found = [(each.name, each.levelname, each.getMessage()) for each in caplog.records]
    assert found[0] == ("ort_dynq.rewriter", "INFO", result.report.summary)
    assert found[-1] == ("ort_dynq.storage", "INFO", f"{tmp_path / 'fast.onnx'} is written")
    details = [text for _, level, text in found if level == "DEBUG"]
    assert len(details) == len(result.report.unconverted) > 0
    assert details[0].endswith(result.report.unconverted[0].reason)


def test_nothing_is_logged_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    ort_dynq.rewrite(TORCHAO)
    assert capfd.readouterr() == ("", "")


def test_results_are_one_line() -> None:
    result = ort_dynq.rewrite(TORCHAO)
    assert repr(result) == f"<Result: {result.report.summary}>"
    assert repr(result.report) == f"<Report: {result.report.summary}>"
    verification = ort_dynq.verify(TORCHAO, result.model)
    assert repr(verification) == f"<Verification: passed; outputs: {len(verification.outputs)}, products: 1>"
    reference = Reference(TORCHAO, {"x": np.ones((2, 8, 20), np.float32)})
    accuracy = measure(reference, result.model, seconds=0)
    assert repr(accuracy).startswith(f"<Accuracy: {accuracy.snr_db:.1f} dB on 1 sets of given data; outputs: ")
    folder = genai.rewrite_folder(LLAMA)
    assert repr(folder) == f"<FolderResult: model.onnx: {folder.results['model.onnx'].report.summary}>"
    for each, tables in ((result.report, 1), (verification, 1), (accuracy, 2), (folder, 1)):
        assert each._repr_html_().startswith(f"<p>{repr(each).partition(': ')[2][:-1]}</p><table>")
        assert each._repr_html_().count("<table>") == tables


def test_results_in_notebooks_escape_names() -> None:
    result = ort_dynq.rewrite(TORCHAO, exact=True)
    page = result._repr_html_()
    assert page.count("<table>") == 2
    assert f"<td>{result.report.rewritten[0].operator}</td>" in page
    result.report.findings.append(dataclasses.replace(result.report.rewritten[0], note="another"))
    assert result._repr_html_().count("<tr>") == page.count("<tr>")  # the table has no notes
    result.report.findings[0] = Finding("<b>", "<script>", "main", "rule", "<i>")
    assert "<script>" not in result._repr_html_()
    assert "<td>&lt;script&gt;</td><td>&lt;i&gt;</td>" in result._repr_html_()
