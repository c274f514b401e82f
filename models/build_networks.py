"""Writes small versions of the networks that `python tests/bench networks` measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from _common import Example, activations, main
from bench import transformers as networks

HIDDEN, HEADS, FEED_FORWARD = 32, 4, 64


def encoder(form: str) -> Example:
    """One layer, a batch of 2, 7 tokens each."""
    model = networks.encoder(form, layers=1, hidden=HIDDEN, heads=HEADS, feed_forward=FEED_FORWARD)
    return Example(model, [activations(2, 7, HIDDEN, zero_row=True)])


def decoder(form: str) -> Example:
    """One layer, a batch of 2, one token each after 5 past tokens."""
    model = networks.decoder_step(form, layers=1, hidden=HIDDEN, heads=HEADS, feed_forward=FEED_FORWARD)
    past = [activations(2, HEADS, 5, HIDDEN // HEADS, seed=seed) for seed in (1, 2)]
    return Example(model, [activations(2, 1, HIDDEN), *past])


MODELS: dict[str, Callable[[], Example]] = {
    "encoder_token": partial(encoder, "token"),
    "encoder_token_integer": partial(encoder, "token_integer"),
    "encoder_tensor_u8": partial(encoder, "tensor_u8"),
    "encoder_tensor_s8": partial(encoder, "tensor_s8"),
    "encoder_torchao": partial(encoder, "torchao"),
    "decoder_token_weights": partial(decoder, "token_weights"),
}

if __name__ == "__main__":
    main(MODELS)
