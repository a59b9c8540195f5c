"""Precision, compilation and device: what each changes, what it must not change, and what is refused."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl import machine
from graspcl.errors import GraspError
from graspcl.model import CosineHead, Execution, GlobalAveragePool, ImageInput, SplitNetwork, build
from graspcl.model.layers import ChannelsLast, PaddedConv2d, StandardizedConv2d

CPU = Execution(device="cpu")
ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_network() -> SplitNetwork:
    """Images [N, 3, H, W] -> latents [N, 8, H, W] -> 5 classes."""
    generator = seeded()
    frozen = nn.Sequential(ImageInput(127, 128), build(lambda: PaddedConv2d(3, 8, kernel=3), generator))

    def plastic() -> nn.Sequential:
        return nn.Sequential(
            OrderedDict(
                channels_last=ChannelsLast(),
                conv=StandardizedConv2d(8, 16, kernel=3, stride=2),
                norm=nn.GroupNorm(8, 16),
                act=nn.GELU(),
                depthwise=StandardizedConv2d(16, 16, kernel=3, groups=16),
                pool=GlobalAveragePool(),
                embedding=nn.Linear(16, 32),
            )
        )

    return SplitNetwork(frozen, build(plastic, generator), CosineHead(32, 5, generator=generator, scale=5.0), nn.GELU())


def images(n: int = 16) -> Tensor:
    return torch.randint(0, 256, (n, 3, 12, 12), dtype=torch.uint8, generator=seeded(1))


def labels(n: int = 16) -> Tensor:
    return torch.arange(n) % 5


def train(network: SplitNetwork, execution: Execution, steps: int = 3) -> None:
    network = execution.prepare(network).train()
    execution.compiled(network.plastic)
    optimizer = torch.optim.SGD([p for _, p in network.plastic_parameters()], lr=0.1, momentum=0.9)
    scaler = execution.scaler()
    for _ in range(steps):
        with execution.autocast():
            loss = F.cross_entropy(network(network.encode(images())).logits, labels())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def plainly_trained(steps: int = 3) -> SplitNetwork:
    network = small_network().train()
    optimizer = torch.optim.SGD([p for _, p in network.plastic_parameters()], lr=0.1, momentum=0.9)
    for _ in range(steps):
        loss = F.cross_entropy(network(network.encode(images())).logits, labels())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def plastic_gradients(execution: Execution) -> dict[str, Tensor]:
    network = small_network()
    train(network, execution, steps=1)
    return {name: p.grad for name, p in network.plastic_parameters() if p.grad is not None}


def require_bf16() -> Execution:
    try:
        return Execution("bf16", device="cpu").resolve()
    except GraspError as error:
        pytest.skip(str(error))


# -- fp32 -------------------------------------------------------------------------------------------------------------


def test_fp32_changes_no_bit() -> None:
    ours, plain = small_network(), plainly_trained()
    train(ours, CPU.resolve())
    for name, value in plain.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name
    assert not torch.equal(plain.head.weight, small_network().head.weight)  # something was learned


def test_preparing_keeps_the_parameters() -> None:
    network = small_network()
    before = {name: (p, p.stride()) for name, p in network.named_parameters()}
    assert CPU.prepare(network) is network
    assert all(p is before[name][0] and p.stride() == before[name][1] for name, p in network.named_parameters())


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_layout_reaches_every_convolution(channels_last: bool) -> None:
    network = Execution(device="cpu", channels_last=channels_last).prepare(small_network())
    seen: list[Tensor] = []
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_hook(lambda part, inputs, out: seen.append(out))
    for layout in (torch.channels_last, torch.contiguous_format):  # whatever comes in
        network(network.encode(images()).contiguous(memory_format=layout))
    assert len(seen) == 6
    assert all(x.is_contiguous(memory_format=torch.channels_last) is channels_last for x in seen)
    assert all(x.is_contiguous() is not channels_last for x in seen)


def test_both_layouts_give_the_same() -> None:
    last, contiguous = (
        Execution(device="cpu", channels_last=choice).prepare(small_network()) for choice in (True, False)
    )
    torch.testing.assert_close(last.encode(images()), contiguous.encode(images()))
    latents = last.encode(images())
    torch.testing.assert_close(last(latents).logits, contiguous(latents).logits)


# -- lower precision --------------------------------------------------------------------------------------------------


def test_bf16_is_near_fp32() -> None:
    bf16 = require_bf16()
    network = small_network()
    train(network, bf16)
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    exact, found = plastic_gradients(CPU), plastic_gradients(bf16)
    assert found.keys() == exact.keys()
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert gradient.isfinite().all(), name
        difference = (gradient - exact[name]).norm() / exact[name].norm()
        assert difference < 0.05, (name, difference)
    # bf16 has 8 binary digits: were the results the same, nothing would have been computed in it.
    assert any(not torch.equal(gradient, exact[name]) for name, gradient in found.items())


def test_bf16_is_used_within_the_context_only() -> None:
    bf16 = require_bf16()
    network = bf16.prepare(small_network())
    with bf16.autocast():
        assert network.frozen(images()).dtype == torch.bfloat16
    assert network.frozen(images()).dtype == torch.float32


def test_a_scaler_of_nothing_passes_the_loss_through() -> None:
    loss = torch.tensor(0.3)
    for execution in (CPU, Execution("bf16", device="cpu")):
        assert execution.scaler().scale(loss) is loss
        assert not execution.scaler().is_enabled()


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_auto_takes_what_is_there() -> None:
    resolved = Execution().resolve()
    if torch.cuda.is_available():
        assert resolved.device == "cuda"
    else:
        assert resolved == CPU
    assert resolved.resolve() == resolved


@pytest.mark.parametrize("device", ["cud", "cuda:99", "meta", "hpu"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(GraspError, match=f"device '{device}' cannot be used here: .+; device 'auto'"):
        Execution(device=device).resolve()


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(GraspError, match=r"fp16 requires cuda.* on cpu use fp32 or bf16"):
        Execution("fp16", device="cpu").resolve()


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(GraspError, match="precision must be 'fp32', 'bf16' or 'fp16', got 'bf61'"):
        Execution("bf61")  # type: ignore[arg-type]


def test_bf16_that_kills_a_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "can_bf16", functools.partial(machine.can_bf16, ILLEGAL))
    with pytest.raises(GraspError, match=r"bf16 does not work on cpu here: .*signal 4 \(Illegal instruction\).*fp32"):
        Execution("bf16", device="cpu").resolve()
    assert CPU.resolve() == CPU


def test_bf16_that_works_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "can_bf16", functools.partial(machine.can_bf16, "pass"))
    assert Execution("bf16", device="cpu").resolve() == Execution("bf16", device="cpu")


# -- compilation ------------------------------------------------------------------------------------------------------


def test_nothing_is_compiled_unasked() -> None:
    network = small_network()
    assert CPU.compiled(network.plastic) is network.plastic
    assert network.plastic._compiled_call_impl is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
def test_compiled_code_gives_the_same() -> None:
    execution = Execution(compile=True, device="cpu").resolve()
    plain, compiled = small_network().eval(), small_network().eval()
    random_state, keys, latents = torch.get_rng_state(), list(plain.state_dict()), plain.encode(images())
    assert execution.compiled(compiled.plastic) is compiled.plastic
    with torch.no_grad():
        for n in (16, 11):
            torch.testing.assert_close(compiled(latents[:n]).logits, plain(latents[:n]).logits, rtol=0, atol=1e-5)
    train(compiled, execution)
    assert list(compiled.state_dict()) == keys
    for name, value in plainly_trained().state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], value, rtol=0, atol=1e-5)
    assert torch.equal(random_state, torch.get_rng_state())


@pytest.mark.slow
def test_a_sequence_is_compiled_as_a_whole_and_a_copy_is_not() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend  # loads the compiler

    counter = CompileCounterWithBackend("eager")
    network = small_network().eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
        Execution(compile=True, device="cpu").compiled(network.plastic)
    copied = copy.deepcopy(network)
    latents = network.encode(images())
    network(latents)
    assert counter.frame_count == 1
    torch.nn.init.zeros_(copied.plastic.embedding.weight)
    assert copied(latents).embedding.abs().max() == 0  # were it compiled, it would run with the original's weights
    assert network(latents).embedding.abs().max() > 0


@pytest.mark.slow
def test_a_missing_compiler_is_said_before_any_work() -> None:
    code = "from graspcl.model import Execution; Execution(compile=True, device='cpu').resolve()"
    environment = {**os.environ, "CXX": "no-such-compiler"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("graspcl.errors.GraspError: torch.compile does not work on cpu here")
    assert "no-such-compiler" in last and "g++" in last
