"""Rainbow: uncertainty from hand-counted views, the stride against a literal loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chi_square import LIKELY, p_value
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Session, batches
from graspcl.policy.rainbow import Rainbow, strided_picks
from graspcl.policy.views import image_view, rotate
from graspcl.testing.common import Outputs, seeded
from graspcl.testing.policies import check_policy


class Tiny(nn.Module):
    """Logits are a linear map of the flattened input; keeps what it was shown."""

    def __init__(self, dim: int, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(dim, classes)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(classes, dim, generator=seeded(0)))
            self.head.bias.zero_()
        self.shown: list[torch.Tensor] = []

    def forward(self, inputs: torch.Tensor) -> Outputs:
        self.shown.append(inputs)
        return Outputs(inputs.flatten(1), self.head(inputs.flatten(1)))


LABELS = np.array([1, 0, 1, 1, 0, 0, 1, 2, 0, 1, 1, 0, 0, 1, 2])


def session(shape: tuple[int, ...], budget: Budget, chunk: int = 512, seed: int = 0) -> Session:
    buffer = Buffer()
    buffer.insert(np.random.default_rng(1).normal(size=(len(LABELS), *shape)).astype(np.float32), LABELS)
    dim = int(np.prod(shape))
    return Session(buffer, budget, np.random.default_rng(seed), Tiny(dim), chunk=chunk, needs=Rainbow.needs)


# -- uncertainty -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [512, 15, 14, 4])
@pytest.mark.parametrize("shape", [(6,), (3, 4, 4)])
def test_uncertainty_is_counted_from_what_the_network_says_of_twelve_views(shape: tuple[int, ...], chunk: int) -> None:
    one = session(shape, Budget(1, 1), chunk)
    found = Rainbow(dropout=0.4, noise=1.0).uncertainty(one)
    network = one._network
    assert isinstance(network, Tiny)
    views = torch.cat([torch.stack(network.shown[i : i + 12], 1) for i in range(0, len(network.shown), 12)])
    assert views.shape == (len(LABELS), 12, *shape)
    for u, mine in zip(found, views, strict=True):
        votes = [0, 0, 0]
        for view in mine:
            votes[int((network.head.weight @ view.flatten()).argmax())] += 1
        assert u == 1 - max(votes) / 12
    assert len(set(found)) > 2  # or else nothing was tested
    assert one.costs.selection_forward == 12 * len(LABELS) and one.costs.selection_backward == 0


def test_without_perturbation_every_sample_is_certain() -> None:
    assert not Rainbow(dropout=0.0, noise=0.0).uncertainty(session((6,), Budget(1, 1))).any()


# -- views -----------------------------------------------------------------------------------------------------------


def test_twelve_views_of_a_feature_map_are_twelve_flips_and_shifts() -> None:
    x = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    still = Rainbow(dropout=0.0, noise=0.0)
    views = [still.view(x, number, torch.Generator()) for number in range(12)]
    assert torch.equal(views[0], x) and torch.equal(views[1], x.flip(3))
    assert torch.equal(views[2][..., 1:], x[..., :-1])  # one place to the right
    assert len({tuple(view.flatten().tolist()) for view in views}) == 12
    assert all(torch.equal(view.flatten(2).sort().values, x.flatten(2)) for view in views)


@pytest.mark.parametrize("shape", [(400, 50), (40, 50, 3, 3)])
def test_channels_are_dropped_as_wholes_and_the_mean_stays(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    seen = Rainbow(dropout=0.3, noise=0.0).view(x, 0, seeded(1)).flatten(2 if len(shape) > 2 else 1)
    per_channel = seen if seen.ndim == 2 else seen[:, :, 0]
    assert seen.ndim == 2 or torch.equal(seen, per_channel[:, :, None].expand_as(seen))
    kept = int((per_channel > 0).sum())
    assert p_value(np.array([kept, per_channel.numel() - kept]), np.array([0.7, 0.3])) > LIKELY
    torch.testing.assert_close(per_channel[per_channel > 0], torch.full((kept,), 1 / 0.7))


def test_noise_is_scaled_by_the_standard_deviation() -> None:
    x = 7 * torch.randn(300, 200, generator=seeded(2))
    added = Rainbow(dropout=0.0, noise=0.5).view(x, 0, seeded(3)) - x
    assert abs(float(added.std()) / 3.5 - 1) < 0.02 and abs(float(added.mean())) < 0.05


def test_stored_images_are_seen_in_twelve_augmentations() -> None:
    """Exact where no chance is in it; the others are tested below."""
    images = torch.randint(1, 256, (len(LABELS), 3, 6, 6), generator=seeded(5)).to(torch.uint8)
    buffer = Buffer()
    buffer.insert(images, LABELS)

    class Pixels(Tiny):
        def forward(self, inputs: torch.Tensor) -> Outputs:
            assert inputs.dtype == torch.uint8
            self.shown.append(inputs)
            return Outputs(inputs.flatten(1).float(), self.head(inputs.flatten(1).float()))

    network = Pixels(3 * 36)
    Rainbow().uncertainty(Session(buffer, Budget(1, 1), np.random.default_rng(0), network, needs=Rainbow.needs))
    assert len(network.shown) == 12
    solarised = [torch.where(images >= least, 255 - images, images) for least in (128, 64, 32)]
    exact = {4: images.flip(3), 5: images.flip(2), 8: 255 - images} | dict(zip((9, 10, 11), solarised, strict=True))
    assert all(torch.equal(network.shown[number], view) for number, view in exact.items())


@pytest.mark.parametrize(("number", "size"), [(0, 8), (1, 16), (2, 24), (3, 32)])
def test_squares_of_four_sizes_are_cut_out_at_random_places(number: int, size: int) -> None:
    images = torch.full((50, 2, 40, 48), 7, dtype=torch.uint8)
    seen = image_view(images, number, seeded(0))
    assert torch.equal(seen[:, 0], seen[:, 1]) and set(seen.unique().tolist()) == {0, 7}
    holes = (seen[:, 0] == 0).float()
    high, wide = holes.amax(2).sum(1), holes.amax(1).sum(1)
    assert torch.equal(holes.sum((1, 2)), high * wide)  # rectangles
    assert high.max() == wide.max() == size and high.min() >= size // 2 <= wide.min()  # cut off at the border
    assert len({tuple(map(tuple, hole.nonzero()[:1].tolist())) for hole in holes}) > 30


@pytest.mark.parametrize("shape", [(6, 6), (4, 7)])
def test_rotations_turn_about_the_centre(shape: tuple[int, int]) -> None:
    images = torch.randint(1, 256, (3, 2, *shape), generator=seeded(1)).to(torch.uint8)
    angles = torch.tensor([0.0, 180.0, -180.0])
    seen = rotate(images, angles)
    assert torch.equal(seen[0], images[0]) and torch.equal(seen[1:], images[1:].flip(2, 3))
    if shape[0] == shape[1]:
        assert torch.equal(rotate(images, torch.full((3,), 90.0)), images.rot90(1, (2, 3)))


@pytest.mark.parametrize(("number", "most"), [(6, 45), (7, 90)])
def test_angles_are_uniform_up_to_a_bound(number: int, most: int) -> None:
    """A bright half-plane on the right; the direction of its weight is the angle."""
    images = torch.zeros(400, 1, 33, 33, dtype=torch.uint8)
    images[..., 17:] = 200
    disc = (torch.linspace(-1, 1, 33)[:, None] ** 2 + torch.linspace(-1, 1, 33)[None] ** 2) < 1
    seen = image_view(images, number, seeded(2))[:, 0] * disc
    x, y = (seen * torch.linspace(-1, 1, 33)).sum((1, 2)), (seen * torch.linspace(1, -1, 33)[:, None]).sum((1, 2))
    angles = torch.rad2deg(torch.atan2(y, x))
    assert most - 4 < float(angles.max()) < most + 2 and -most - 2 < float(angles.min()) < 4 - most
    counts = np.histogram(angles.numpy(), bins=4, range=(-most - 2, most + 2))[0]
    assert p_value(counts, np.full(4, 0.25)) > LIKELY


def test_tokens_of_a_text_stand_in_for_others_of_it() -> None:
    ids = torch.zeros(200, 20, dtype=torch.int32)
    ids[:, 0], ids[:, 1:12] = 9, torch.arange(100, 111, dtype=torch.int32)  # a first token, eleven, then padding
    seen = Rainbow(dropout=0.5).view(ids, 0, seeded(0))
    assert seen.dtype == ids.dtype and torch.equal(seen[:, 0], ids[:, 0]) and not seen[:, 12:].any()
    assert int(seen[:, 1:12].min()) >= 100 and int(seen[:, 1:12].max()) <= 110
    same = int((seen[:, 1:12] == ids[:, 1:12]).sum())  # half of them stay, and of the others one in eleven comes back
    stay = 0.5 + 0.5 / 11
    assert p_value(np.array([same, 2200 - same]), np.array([stay, 1 - stay])) > LIKELY
    assert torch.equal(Rainbow(dropout=0.0).view(ids, 0, torch.Generator()), ids)
    one = torch.tensor([[9, 0, 0]])
    assert torch.equal(Rainbow(dropout=0.9).view(one, 0, torch.Generator()), one)


def test_whole_numbers_that_are_no_text_cannot_be_perturbed() -> None:
    with pytest.raises(GraspError, match=r"got torch\.int64 of 3 axes"):
        Rainbow().view(torch.ones(2, 3, 4, dtype=torch.int64), 0, torch.Generator())


# -- the stride ------------------------------------------------------------------------------------------------------


def test_the_stride_is_that_of_a_literal_loop() -> None:
    rng = np.random.default_rng(4)
    for n in range(1, 14):
        ordered = rng.permutation(n) + 100
        for m in range(30):
            expected = []
            for _ in range(m // n):
                expected += ordered.tolist()
            rest = m % n
            place = 0
            for _ in range(rest):
                expected.append(int(ordered[place]))
                place += n // rest
            picks = strided_picks(ordered, m, rng)
            assert sorted(picks.tolist()) == sorted(expected)
            for begin in range(0, m - n + 1, n):  # whole passes come one after the other
                assert sorted(picks[begin : begin + n].tolist()) == sorted(ordered.tolist())


def test_picks_come_in_random_order() -> None:
    rng = np.random.default_rng(5)
    first = [int(strided_picks(np.arange(12), 4, rng)[0]) for _ in range(2000)]
    assert p_value(np.bincount(first, minlength=12)[[0, 3, 6, 9]], np.ones(4)) > LIKELY


def test_a_session_takes_from_each_class_the_stride_over_its_uncertainty(monkeypatch: pytest.MonkeyPatch) -> None:
    u = np.random.default_rng(6).permutation(len(LABELS)) / 12
    monkeypatch.setattr(Rainbow, "uncertainty", lambda self, session: u)
    drawn = np.concatenate(list(batches(Rainbow(), session((6,), Budget(4, 2)))))
    assert LABELS[drawn].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    for k, m in ((0, 3), (1, 3), (2, 2)):
        mine = np.flatnonzero(k == LABELS)
        ordered = mine[np.argsort(u[mine])]
        assert sorted(drawn[LABELS[drawn] == k]) == sorted(ordered[:: len(mine) // m][:m])


def test_equal_uncertainties_are_taken_in_turn() -> None:
    """Two of six samples that are all certain: each of them in a third of the sessions."""
    even = Rainbow(views=1, dropout=0.0, noise=0.0)
    buffer = Buffer()
    buffer.insert(np.ones((6, 4), np.float32), np.zeros(6, int))
    counts = np.zeros(6, int)
    for seed in range(600):
        one = Session(buffer, Budget(1, 2), np.random.default_rng(seed), Tiny(4))
        counts += np.bincount(next(batches(even, one)), minlength=6)
    assert p_value(counts, np.ones(6)) > LIKELY


@pytest.mark.parametrize("policy", [Rainbow(views=3, noise=0.0)], ids=repr)
@pytest.mark.usefixtures("fewer_sessions")
def test_it_keeps_the_contract_with_other_parameters(policy: Rainbow) -> None:
    check_policy(policy)


@pytest.mark.parametrize("wrong", [{"views": 0}, {"dropout": 1.0}, {"noise": -1.0}, {"noise": float("nan")}])
def test_parameters_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(GraspError, match=f"{next(iter(wrong))} must be"):
        Rainbow(**wrong)  # type: ignore[arg-type]
