"""Codecs that keep every number: exactly, or in half the bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graspcl.codec import Codec, Half, Identity, codecs
from graspcl.errors import GraspError

floats = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64])
def test_identity_is_exact_in_every_type(dtype: torch.dtype) -> None:
    inputs = torch.arange(24).reshape(2, 3, 4).to(dtype)
    decoded = Identity().decode(Identity().encode(inputs))
    assert decoded.dtype == dtype and torch.equal(decoded, inputs)
    assert Identity().nbytes == 0


@given(floats)
def test_half_keeps_eleven_bits_and_never_infinity(numbers: list[float]) -> None:
    inputs = torch.tensor(numbers)
    codes = Half().encode(inputs)
    decoded = Half().decode(codes)
    assert codes.dtype == torch.float16 and codes.element_size() == 2 and decoded.dtype == torch.float32
    assert decoded.isfinite().all()
    within = inputs.clamp(-65504, 65504)
    # Half a unit in the last of 11 bits; near zero, half of the smallest number there is.
    assert ((decoded - within).abs() <= torch.maximum(within.abs() * 2**-11, torch.tensor(2.0**-25))).all()


def test_half_beyond_its_range_is_its_largest_number() -> None:
    inputs = torch.tensor([1e9, -1e9, 65504.0, 65530.0, float("inf")])
    assert Half().decode(Half().encode(inputs)).tolist() == [65504, -65504, 65504, 65504, 65504]


def test_codecs_are_known_by_name() -> None:
    assert codecs.names() == ["auto", "encoded", "half", "identity", "int8", "opq"]
    assert codecs.create("half") == Half()
    with pytest.raises(GraspError, match="did you mean 'identity'"):
        codecs.create("identiy")


def test_a_new_codec_must_define_both_ways() -> None:
    class Mine(Codec):
        pass

    with pytest.raises(GraspError, match="Mine must define encode"):
        Mine().encode(torch.zeros(1))
    with pytest.raises(GraspError, match="Mine must define decode"):
        Mine().decode(torch.zeros(1))
