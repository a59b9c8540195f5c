"""Encoders and tokenizers in Hugging Face's format, with damage to each of their files: each is read, or refused.

A process of its own reads them, with a cap on its memory: the libraries behind them end a process that has too little.
"""

import os

import pytest

from capped import run_capped

pytest.importorskip("transformers", reason="needs graspcl[text]")
EXAMPLES = int(os.environ.get("GRASPCL_FUZZ", "2000"))

MAKE = """
import json, random, sys, tempfile
from pathlib import Path
import tokenizers, torch, transformers
from graspcl.errors import GraspError
from graspcl.model import networks
from graspcl.model.texts import StaticTextEncoder, Tokenizer
from safetensors.torch import save_file
import warnings
warnings.simplefilter("ignore")
words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"])}
sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=12)
place = Path(tempfile.mkdtemp())
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=16)).save_pretrained(place)
made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
made.save(str(place / "tokenizer.json"))
vocabulary = Path(tempfile.mkdtemp())  # a tokenizer without tokenizer.json, which transformers makes of its words
(vocabulary / "vocab.txt").write_text("\\n".join(words))
(vocabulary / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
save_file({"embedding.weight": torch.randn(12, 4)}, place / "embeddings.safetensors")
sound = {path: path.read_bytes() for path in (*place.iterdir(), *vocabulary.iterdir())}
VALUES = [None, -1, 0, 1, 10**6, 2**31, 10**30, 1e308, "", "x", [], {}, True, [[]], "\\0", "bert", "gpt2", "albert"]

def damaged(content, rng):
    try:  # a value of a JSON file
        if rng.random() < 0.3:
            raise ValueError
        tree = json.loads(content)
        inner = tree
        while True:
            key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.3:
                break
            inner = inner[key]
        inner[key] = rng.choice(VALUES)
        return json.dumps(tree).encode()
    except ValueError:  # bytes
        content = bytearray(content)
        at = rng.randrange(len(content))
        if rng.random() < 0.3:
            del content[at:]
        else:
            content[at : at + 4] = rng.randbytes(rng.randrange(9))
        return bytes(content)

def use(name):
    if name in ("vocab.txt", "tokenizer_config.json"):
        Tokenizer(vocabulary, 8).encode(["a b", "", "zz"])
        return
    if name != "embeddings.safetensors":
        generator = torch.Generator().manual_seed(0)
        networks.create("transformer", model=str(place), max_tokens=8, frozen_layers=1, generator=generator)
    if name not in ("config.json", "model.safetensors"):
        Tokenizer(place, 8).encode(["a b", "", "zz"])
        StaticTextEncoder(place / "embeddings.safetensors", place / "tokenizer.json").encode(["a b", ""])

use("tokenizer.json")
use("vocab.txt")
cap(2000)
refused = 0
for seed in range(int(sys.argv[1])):
    rng = random.Random(seed)
    file = rng.choice(sorted(sound))
    file.write_bytes(damaged(sound[file], rng))
    try:
        use(file.name)
    except GraspError:
        refused += 1
    except BaseException as error:
        raise SystemExit(f"seed {seed}, {file.name}: {type(error).__name__}: {error}"[:600]) from error
    file.write_bytes(sound[file])
print(refused)
"""


@pytest.mark.slow
def test_folders_of_hugging_face():
    assert int(run_capped(MAKE, EXAMPLES, seconds=3600).split()[-1]) > EXAMPLES // 4
