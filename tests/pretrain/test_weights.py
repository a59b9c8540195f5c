"""Weights from files: what fits where, what is said when it does not, and what is never done with a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_network import same, seeded, tiny
from torch import nn

from graspcl.codec import OPQ, Half
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork, build, mobilenet_v3_large, veridical
from graspcl.pretrain import load_codec, load_weights, read_header, read_weights, save_weights


def weights_of(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in network.state_dict().items() if not name.endswith("_extra_state")}


def equal(a: nn.Module, b: nn.Module, part: str = "") -> bool:
    first, second = weights_of(a), weights_of(b)
    counters = "num_batches_tracked"
    names = [name for name in first if name.startswith(part) and not name.endswith(counters)]
    return all(torch.equal(first[name], second[name]) for name in names)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    source, target = tiny(0, classes=3), tiny(1, classes=3)
    assert not equal(source, target)
    save_weights(source, tmp_path / "deep" / "base.safetensors")
    report = load_weights(target, tmp_path / "deep" / "base.safetensors")
    assert equal(source, target)
    assert len(report.loaded) == 4 * 5 + 3 and str(report) == "23 tensors loaded"
    assert os.listdir(tmp_path / "deep") == ["base.safetensors"]


def test_generators_are_the_networks_own(tmp_path: Path) -> None:
    source, target, other = tiny(0, classes=3), tiny(1, classes=3), tiny(1, classes=3)
    save_weights(source, tmp_path / "a")
    load_weights(target, tmp_path / "a")
    assert torch.equal(target.head.generator.get_state(), other.head.generator.get_state())
    assert not any("_extra_state" in name for name in read_weights(tmp_path / "a"))


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s}])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".anything"])
def test_state_dicts_of_torch(tmp_path: Path, wrap, suffix: str) -> None:
    source, target = tiny(0, classes=3), tiny(1, classes=3)
    torch.save(wrap(source.state_dict()), tmp_path / f"a{suffix}")
    load_weights(target, tmp_path / f"a{suffix}")
    assert equal(source, target)


def test_the_old_format_of_torch(tmp_path: Path) -> None:
    source, target = tiny(0, classes=3), tiny(1, classes=3)
    torch.save(weights_of(source), tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    load_weights(target, tmp_path / "a.pth")
    assert equal(source, target)


@pytest.mark.parametrize("prefix", ["module.", "model.", "module.model."])
def test_a_prefix_is_taken_off_or_suggested(tmp_path: Path, prefix: str) -> None:
    source, target = tiny(0, classes=3), tiny(1, classes=3)
    torch.save({prefix + name: value for name, value in weights_of(source).items()}, tmp_path / "a.pth")
    with pytest.raises(GraspError, match=rf"none of the network's tensors.*start with '{prefix.split('.')[0]}\.'"):
        load_weights(target, tmp_path / "a.pth")
    load_weights(target, tmp_path / "a.pth", prefix=prefix)
    assert equal(source, target)


def test_a_second_prefix_is_suggested_with_the_first(tmp_path: Path) -> None:
    torch.save({f"module.model.{name}": value for name, value in weights_of(tiny()).items()}, tmp_path / "a.pth")
    with pytest.raises(GraspError, match=r"start with 'module\.model\.'; pass that as prefix"):
        load_weights(tiny(), tmp_path / "a.pth", prefix="module.")


def test_a_head_of_another_size_is_left_alone(tmp_path: Path) -> None:
    source, target = tiny(0, classes=3), tiny(1, classes=5)
    save_weights(source, tmp_path / "a")
    rows = target.head.weight.clone()
    report = load_weights(target, tmp_path / "a")
    assert "it has 5 rows, the file's 3" in str(report)
    assert torch.equal(target.head.weight, rows) and equal(source, target, "plastic.")


def test_the_body_alone(tmp_path: Path) -> None:
    source, target = tiny(0, classes=3), tiny(1, classes=3)
    save_weights(source, tmp_path / "a")
    rows = target.head.weight.clone()
    report = load_weights(target, tmp_path / "a", part="body")
    assert torch.equal(target.head.weight, rows) and equal(source, target, "frozen.")
    assert "head was not loaded" in report.head and not report.missing
    body = {name: value for name, value in weights_of(source).items() if not name.startswith("head.")}
    save_file(body, tmp_path / "b")
    load_weights(tiny(2), tmp_path / "b", part="body")
    with pytest.raises(GraspError, match=r"3 tensors are missing \(head"):
        load_weights(tiny(2), tmp_path / "b")


def test_a_file_fits_a_network_that_is_split_elsewhere(tmp_path: Path) -> None:
    source, target = tiny(0, split=1), tiny(1, split=2)
    save_weights(source, tmp_path / "a")
    load_weights(target, tmp_path / "a")
    x = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8, generator=seeded())
    assert torch.equal(source(source.encode(x)).embedding, target(target.encode(x)).embedding)
    bare = {name.removeprefix("frozen.").removeprefix("plastic."): v for name, v in weights_of(source).items()}
    save_file(bare, tmp_path / "b")
    load_weights(tiny(2), tmp_path / "b")


def test_numbered_layers_are_never_taken_for_each_other(tmp_path: Path) -> None:
    from graspcl.model import CosineHead, SplitNetwork, build

    def numbered(frozen: int, plastic: int) -> SplitNetwork:
        parts = [
            build(lambda n=n: nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)]), seeded()) for n in (frozen, plastic)
        ]
        return SplitNetwork(*parts, CosineHead(4, generator=seeded()))

    save_weights(numbered(2, 1), tmp_path / "a")
    with pytest.raises(GraspError, match=r"2 tensors are missing \(plastic.1.weight"):
        load_weights(numbered(1, 2), tmp_path / "a")


def test_what_does_not_fit_is_listed_and_changes_nothing(tmp_path: Path) -> None:
    source, target = tiny(0, classes=3), tiny(1, classes=3)
    tensors = weights_of(source)
    del tensors["frozen.layer0.0.weight"], tensors["plastic.layer2.1.bias"]
    tensors |= {"extra.weight": torch.zeros(1), "plastic.layer3.0.weight": torch.zeros(2, 2)}
    save_file(tensors, tmp_path / "a")
    before = {name: value.clone() for name, value in target.state_dict().items()}
    message = r"2 tensors are missing \(frozen.layer0.0.weight, plastic.layer2.1.bias\).*2 do not fit"
    with pytest.raises(GraspError, match=message):
        load_weights(target, tmp_path / "a")
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
    report = load_weights(target, tmp_path / "a", strict=False)
    assert report.missing == ("frozen.layer0.0.weight", "plastic.layer2.1.bias")
    assert set(report.unexpected) == {"extra.weight", "plastic.layer3.0.weight [2, 2] instead of [32, 32, 3, 3]"}
    assert torch.equal(target.plastic.layer2[0].weight, source.plastic.layer2[0].weight)
    assert torch.equal(target.plastic.layer3[0].weight, before["plastic.layer3.0.weight"])


def test_statistics_without_counters_are_enough(tmp_path: Path) -> None:
    tensors = {name: value for name, value in weights_of(tiny()).items() if "num_batches" not in name}
    save_file(tensors, tmp_path / "a")
    assert not load_weights(tiny(1), tmp_path / "a").missing


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("evil",)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.zeros(2), "evil": Evil()}, tmp_path / "a.pth")
    with pytest.raises(GraspError, match=r"a\.pth contains more than tensors: reading it would execute code"):
        load_weights(tiny(), tmp_path / "a.pth")
    assert not (tmp_path / "evil").exists()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    save_weights(tiny(), tmp_path / "a")
    torch.save(tiny().state_dict(), tmp_path / "b")
    for name, message in (("a", "damaged or not a safetensors file"), ("b", "damaged")):
        whole = (tmp_path / name).read_bytes()
        for size in (len(whole) - 1, len(whole) // 2, 200):
            (tmp_path / name).write_bytes(whole[:size])
            with pytest.raises(GraspError, match=rf"the weights .*/{name} are {message}"):
                load_weights(tiny(), tmp_path / name)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello, these are weights", b"{}"):
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(GraspError, match="text contains no weights"):
            load_weights(tiny(), tmp_path / "text")
    with pytest.raises(GraspError, match=r"the weights .*nowhere cannot be read: No such file"):
        load_weights(tiny(), tmp_path / "nowhere")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(GraspError, match="must contain a state dict of names and tensors, got list"):
        load_weights(tiny(), tmp_path / "list.pt")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "base.safetensors"
    save_weights(tiny(0), path)
    before = path.read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GraspError, match=r"cannot be written to .*: No space left on device"):
        save_weights(tiny(1), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["base.safetensors"]


def test_a_codec_travels_with_the_network(tmp_path: Path) -> None:
    codec = OPQ(codebooks=2, size=16, iterations=2).fit(torch.randn(200, 8, generator=seeded()))
    save_weights(tiny(0), tmp_path / "a", codec, {"method": "swav", "epochs": 3})
    assert read_header(tmp_path / "a")["settings"] == {"method": "swav", "epochs": 3}
    back, x = load_codec(tmp_path / "a"), torch.randn(5, 8, generator=seeded(1))
    assert isinstance(back, OPQ) and (back.codebooks, back.size) == (2, 16)
    assert torch.equal(back.encode(x), codec.encode(x))
    assert not load_weights(tiny(1), tmp_path / "a").unexpected
    save_weights(tiny(0), tmp_path / "b", Half())
    assert isinstance(load_codec(tmp_path / "b"), Half)
    save_weights(tiny(0), tmp_path / "c")
    assert load_codec(tmp_path / "c") is None
    save_file({"x": torch.zeros(1)}, tmp_path / "d")
    with pytest.raises(GraspError, match="was not written by graspcl"):
        read_header(tmp_path / "d")


def test_a_real_network(tmp_path: Path) -> None:
    source, target = (mobilenet_v3_large(classes=3, generator=seeded(seed)) for seed in (0, 1))
    save_weights(source, tmp_path / "a")
    load_weights(target, tmp_path / "a")
    assert equal(source, target) and not same(source, target)  # the generators differ
    # Split later, layers that have GroupNorm here would need the statistics of BatchNorm.
    with pytest.raises(GraspError, match=r"18 tensors are missing \(frozen.layer8.*running_mean"):
        load_weights(mobilenet_v3_large(classes=3, split=10, generator=seeded(2)), tmp_path / "a")


@pytest.mark.parametrize("size", [2, 10, 100, 400])
@pytest.mark.parametrize("old", [False, True])
def test_a_state_dict_cut_short_is_named(tmp_path: Path, size: int, old: bool) -> None:
    path = tmp_path / "cut.pth"
    torch.save(tiny().state_dict(), path, _use_new_zipfile_serialization=not old)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(GraspError, match=r"cut\.pth"):
        load_weights(tiny(), path)


def test_a_file_fits_the_veridical_form(tmp_path: Path) -> None:
    network, other = (mobilenet_v3_large(generator=seeded(seed)) for seed in (0, 1))
    save_weights(network, tmp_path / "base.safetensors")
    load_weights(veridical(other), tmp_path / "base.safetensors")
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    network, other = network.eval(), other.eval()
    assert torch.equal(network(network.encode(images)).embedding, other(other.encode(images)).embedding)


def test_shared_layers_are_saved(tmp_path: Path) -> None:
    def network(seed: int) -> SplitNetwork:
        layer = build(lambda: nn.Linear(4, 4), seeded(seed))
        plastic = nn.Sequential(layer, layer)
        return SplitNetwork.of(nn.Identity(), plastic, torch.zeros(1, 4), generator=seeded(seed), classes=2)

    one, other, x = network(0), network(1), torch.ones(1, 4)
    save_weights(one, tmp_path / "shared.safetensors")
    assert not torch.equal(one(x).logits, other(x).logits)
    assert not load_weights(other, tmp_path / "shared.safetensors").missing
    assert torch.equal(one(x).logits, other(x).logits)
    assert other.plastic[0] is other.plastic[1]  # still shared
