"""What a written model says of its origin."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
from quantizing import product
from rewriting import MODELS

import ort_dynq
from ort_dynq.operators import OPERATORS

TOKEN = MODELS / "torch_token" / "model.onnx"


def metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {each.key.removeprefix("ort_dynq."): each.value for each in model.metadata_props}


def test_origin_of_a_rewritten_model() -> None:
    found = metadata(ort_dynq.rewrite(TOKEN, fuse=True).to_proto())
    assert (found["version"], found["exact"]) == (ort_dynq.__version__, "0")
    assert found["options"] == "exact=0 fuse=1 weights_only=keep keep_fused=0"
    assert found["source"] == hashlib.sha256(TOKEN.read_bytes()).hexdigest()


def test_origin_of_a_model_without_a_file(tmp_path: Path) -> None:
    """A rewrite of a rewritten model says what it was made from, not what that one was made from."""
    model = product()
    model.metadata_props.add(key="ort_dynq.source", value="of another model")
    ort_dynq.quantize(model).save(tmp_path / "int8.onnx")
    found = metadata(onnx.load(tmp_path / "int8.onnx"))
    assert found["quantized"].startswith("weights=int8 ")
    assert (found["version"], "source" in found) == (ort_dynq.__version__, False)


def test_functions_explain_themselves() -> None:
    model = ort_dynq.rewrite(TOKEN).to_proto()
    functions = [each for each in model.functions if each.domain == "ort_dynq"]
    assert functions
    for each in functions:
        assert each.doc_string == f"{OPERATORS[each.name].doc}\n\n{OPERATORS[each.name].formula}"
