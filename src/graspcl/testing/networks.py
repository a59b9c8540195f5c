"""The contract of a network."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graspcl.model import SplitNetwork, veridical
from graspcl.testing.common import contract, global_chance_untouched, same


def check_network(make: Callable[[], SplitNetwork], inputs: torch.Tensor) -> None:
    """Assert what every network promises.

    Args:
        make: returns a new network with at least one class, an equal one each time.
        inputs: raw inputs [n, …] for it, n ≥ 2.

    >>> from graspcl.model import make_network
    >>> images = torch.randint(256, (4, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    >>> check_network(lambda: make_network("small", classes=3, generator=torch.Generator().manual_seed(0)), images)
    """
    with contract("the network"):
        with global_chance_untouched("it"):
            network, other = make().eval(), make().eval()
            _check_shapes(network, inputs)
            equal = same(dict(network.state_dict()), dict(other.state_dict()))
            assert equal, "the same generator must give the same weights"
            _check_training(network, inputs)
        other.load_state_dict(network.state_dict())
        latents = network.encode(inputs)
        assert torch.equal(network(latents).logits, other.eval()(latents).logits), "a state restores the network"
        raw = veridical(other).eval()(inputs).logits
        torch.testing.assert_close(raw, network(latents).logits, msg="raw inputs must give the same logits as latents")


def _check_shapes(network: SplitNetwork, inputs: torch.Tensor) -> None:
    n, classes = len(inputs), network.head.classes
    latents = network.encode(inputs)
    assert len(latents) == n and not latents.requires_grad, "encode returns one latent per input, without gradients"
    embedding, features, logits = network(latents)
    assert embedding.ndim == 2 and len(embedding) == n, "the embedding is one vector per input"
    assert features.shape == (n, network.head.features), "the head gets features of its width"
    assert classes and logits.shape == (n, classes), "there is one logit per class"
    assert torch.equal(network(latents).logits, logits), "in eval mode, the same latents give the same logits"
    apart = torch.cat([network(network.encode(part)).logits for part in inputs.split(1)])
    torch.testing.assert_close(apart, logits, rtol=1e-3, atol=1e-4, msg="an input's logits depend on it alone")
    rows = network.head.weight.detach().clone()
    network.head.grow(classes)
    assert torch.equal(network.head.weight, rows), "the head keeps the rows it has"


def _check_training(network: SplitNetwork, inputs: torch.Tensor) -> None:
    frozen = {name: value.clone() for name, value in network.frozen.state_dict().items()}
    latents = network.encode(inputs)
    network.train()
    assert not any(module.training for module in network.frozen.modules()), "the frozen part stays in eval mode"
    named = network.plastic_parameters()
    assert named, "some parameters must learn"
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    torch.nn.functional.cross_entropy(network(latents).logits, torch.zeros(len(inputs), dtype=torch.int64)).backward()
    untouched = [name for name, parameter in named if parameter.grad is None]
    assert not untouched, f"every parameter that learns needs a gradient, but {untouched[:3]} have none"
    optimizer.step()
    network.eval()
    assert same(frozen, dict(network.frozen.state_dict())), "the frozen part must not change"
    assert torch.equal(network.encode(inputs), latents), "latents stay the same, whatever the plastic part learns"
