"""The program of a recurrent layer is listed."""

from __future__ import annotations

from recurrence import dynamic, layer

from ort_dynq.rewriter.listing import listing_of


def test_listing_of_the_program() -> None:
    """What `ort-dynq inspect --program` shows."""
    model = dynamic(layer("LSTM")[0])
    listing = listing_of(model, "layer_quant")
    assert listing.operator == "QuantizedRecurrence"
    assert [(each.name, each.value) for each in listing.outputs] == [("dst", "y"), ("dst_2", "y_c")]
