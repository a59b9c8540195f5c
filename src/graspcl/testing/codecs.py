"""The contract of a codec: call `check_codec` in the tests of your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graspcl.codec import Codec
from graspcl.testing.common import contract, global_chance_untouched


def check_codec(make: Callable[[], Codec], inputs: torch.Tensor) -> None:
    """Assert what a buffer relies on.

    Args:
        make: returns a new codec on each call.
        inputs: at least 4 inputs [n, …] to fit and test it with.

    >>> from graspcl.codec import Half
    >>> check_codec(Half, torch.linspace(-1, 1, 40).reshape(10, 4))
    """
    if len(inputs) < 4:
        raise ValueError(f"check_codec needs at least 4 inputs, got {len(inputs)}")
    codec = make()
    with contract(type(codec).__name__), global_chance_untouched("it"):
        assert codec.fit(inputs) is codec, "fit must return the codec itself"
        codes = _check_encoding(codec, inputs)
        _check_decoding(codec, codes, inputs)
        _check_rows_are_independent(codec, codes, inputs)
        assert codec.encode(inputs[:0]).shape == codes[:0].shape, "must encode an empty batch to an empty batch"
        assert codec.decode(codes[:0]).shape == inputs[:0].shape, "must decode an empty batch to an empty batch"
        again = make().fit(inputs).encode(inputs)
        assert torch.equal(again, codes), "trained twice on the same inputs gives other codes"
        _check_state(codec, make(), inputs)


def _check_encoding(codec: Codec, inputs: torch.Tensor) -> torch.Tensor:
    before = inputs.clone()
    codes = codec.encode(inputs)
    assert isinstance(codes, torch.Tensor) and codes.device.type == "cpu", "encode must give a CPU tensor"
    assert len(codes) == len(inputs), f"encode gave {len(codes)} codes for {len(inputs)} inputs"
    assert torch.equal(inputs, before), "encode changed its inputs"
    assert torch.equal(codec.encode(inputs), codes), "encode gives other codes the second time"
    if inputs.is_floating_point():
        with_gradient = codec.encode(inputs.clone().requires_grad_())
        assert not with_gradient.requires_grad, "encode must detach: codes are stored, not trained through"
    return codes


def _check_decoding(codec: Codec, codes: torch.Tensor, inputs: torch.Tensor) -> None:
    before = codes.clone()
    decoded = codec.decode(codes)
    assert decoded.shape == inputs.shape, f"decodes to shape {tuple(decoded.shape)}, not {tuple(inputs.shape)}"
    assert decoded.dtype in (torch.float32, inputs.dtype), f"decodes to {decoded.dtype}"
    assert bool(decoded.isfinite().all()), "decodes finite inputs to NaN or infinity"
    assert torch.equal(codes, before), "decode changed its codes"
    if codec.error == "none":
        assert torch.equal(decoded, inputs), "declares error 'none', but does not decode to its inputs"
    else:
        loss = (decoded - inputs).square().mean()
        spread = (inputs - inputs.float().mean(0)).square().mean()
        assert loss <= spread, f"loses more ({loss:.3g}) than storing the mean of all inputs would ({spread:.3g})"


def _check_rows_are_independent(codec: Codec, codes: torch.Tensor, inputs: torch.Tensor) -> None:
    """A sample is fetched with other samples than it was stored with."""
    decoded = codec.decode(codes)
    scale = float(inputs.abs().max()) + 1e-12
    every_other = codec.decode(codes[::2])
    assert torch.allclose(every_other, decoded[::2], atol=1e-5 * scale), "decodes a code by its neighbours"
    # Compare losses, not codes: rounding may change which of two equally good codes is chosen.
    alone = torch.cat([codec.decode(codec.encode(inputs[i : i + 1])) for i in range(4)])
    loss, expected = ((x - inputs[:4]).float().square().flatten(1).mean(1) for x in (alone, decoded[:4]))
    assert torch.allclose(loss, expected, 1e-3, 1e-6 * scale**2), "encodes an input by its neighbours"
    strided = codec.encode(inputs[::2])
    assert strided.shape[1:] == codes.shape[1:], "gives codes whose size depends on the batch"
    assert strided.dtype == codes.dtype, "gives codes whose type depends on the batch"


def _check_state(codec: Codec, fresh: Codec, inputs: torch.Tensor) -> None:
    state = codec.state_dict()
    _check_plain(state)
    tables = sum(v.numel() * v.element_size() for v in state.values() if isinstance(v, torch.Tensor))
    assert codec.nbytes >= tables, f"nbytes is {codec.nbytes}, but its state holds {tables} bytes of tables"
    fresh.load_state_dict(state)
    codes = codec.encode(inputs)
    assert torch.equal(fresh.encode(inputs), codes), "restored from its state encodes differently"
    assert torch.equal(fresh.decode(codes), codec.decode(codes)), "restored from its state decodes differently"
    assert fresh.nbytes == codec.nbytes, "restored from its state has other nbytes"


def _check_plain(state: dict[str, Any]) -> None:
    """Assert that a checkpoint can hold the state without pickle."""
    for value in state.values():
        if isinstance(value, dict):
            _check_plain(value)
            continue
        plain = isinstance(value, torch.Tensor | int | float | str | bool | None)
        assert plain, f"state_dict() holds a {type(value).__name__}; keep to tensors, numbers and strings"
