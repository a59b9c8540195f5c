"""The static text encoder against its definition."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from graspcl.errors import GraspError, MissingExtra
from graspcl.model import StaticTextEncoder, TextInputs

tokenizers = pytest.importorskip("tokenizers", reason="needs graspcl[demo]")
pytestmark = pytest.mark.skipif(find_spec("wordllama") is None, reason="needs graspcl[demo]")

TEXTS = ["Garden chair, green, hardly used", "iphone 12", "", "Ünïcode 日本語 🚲", "a " * 500, " "]


@pytest.fixture(scope="module")
def encoder() -> StaticTextEncoder:
    return StaticTextEncoder()


def test_vectors_are_normalised_means_of_token_embeddings(encoder: StaticTextEncoder) -> None:
    spec = find_spec("wordllama")
    assert spec is not None and spec.origin is not None
    tokenizer = tokenizers.Tokenizer.from_file(
        str(Path(spec.origin).parent / "tokenizers/l2_supercat_tokenizer_config.json")
    )
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), 256) and vectors.dtype == torch.float32
    for line, vector in zip(TEXTS, vectors, strict=True):
        ids = tokenizer.encode(line, add_special_tokens=False).ids or [tokenizer.token_to_id("<unk>")]
        mean = encoder.embeddings[ids].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(TEXTS)))


def test_chunks_do_not_matter(encoder: StaticTextEncoder) -> None:
    assert torch.equal(encoder.encode(TEXTS, chunk=2), encoder.encode(TEXTS))


def test_no_texts(encoder: StaticTextEncoder) -> None:
    assert encoder.encode([]).shape == (0, 256)


def test_the_package_is_not_imported(encoder: StaticTextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)  # other packages may have imported it
    encoder.encode(TEXTS)
    assert "wordllama" not in sys.modules


def test_one_text_is_no_list_of_texts(encoder: StaticTextEncoder) -> None:
    with pytest.raises(GraspError, match=r"encode\(\[text\]\)"):
        encoder.encode("chair")
    with pytest.raises(GraspError, match="text 1 must be a str, got int"):
        encoder.encode(["chair", 3])  # type: ignore[list-item]


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graspcl.packages.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"\.\[demo\]"):
        StaticTextEncoder()


def test_wrong_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(GraspError, match="is not a file"):
        StaticTextEncoder(weights=tmp_path / "none.safetensors")
    save_file({"other": torch.ones(2, 2)}, tmp_path / "w.safetensors")
    with pytest.raises(GraspError, match=r"got other \[2, 2\]"):
        StaticTextEncoder(weights=tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"no weights")
    with pytest.raises(GraspError, match="are damaged or not a safetensors file"):
        StaticTextEncoder(weights=tmp_path / "w.safetensors")
    save_file({"embedding.weight": torch.ones(2, 2)}, tmp_path / "w.safetensors")
    with pytest.raises(GraspError, match="must have a row for each token"):
        StaticTextEncoder(weights=tmp_path / "w.safetensors")


def test_texts_become_inputs_of_the_vector_network(encoder: StaticTextEncoder) -> None:
    inputs = TextInputs.of("vector", {"dim": 256, "hidden": 8})
    assert inputs.fingerprint() == {"encoder": "wordllama256"}
    assert torch.equal(inputs.encode(TEXTS), encoder.encode(TEXTS))
    with pytest.raises(GraspError, match="network 'small' reads images, not texts"):
        TextInputs.of("small", {})
