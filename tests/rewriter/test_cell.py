"""The cell of a recurrent layer on states of one sign."""

from __future__ import annotations

from helpers import stock_session
from lstm_models import noise, rewritten, run
from recurrence import dynamic, layer, with_weights_of


def test_states_of_one_sign() -> None:
    """Relu makes all states positive: they have 256 codes, as in DynamicQuantizeLSTM."""
    model, feeds = layer("LSTM", activations=["Sigmoid", "Relu", "Relu"], steps=20)
    original = dynamic(model)
    expected = stock_session(with_weights_of(original, model)).run(None, feeds)
    stock = stock_session(original).run(None, feeds)
    assert noise(expected, run(rewritten(original), feeds)) < noise(expected, stock)
