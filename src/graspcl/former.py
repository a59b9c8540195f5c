"""Run folders of earlier versions: what they mean by parts whose defaults have changed since."""

from __future__ import annotations

from typing import Any

# Parts whose defaults changed when base initialisation got stages, with the parameters that they had before.
_FORMER: dict[tuple[str, str], dict[str, Any]] = {
    ("network", "mobilevit_s"): {"frozen_norm": "batch", "standardised": "blocks"},
    ("policy", "gss"): {"mode": "top", "reference_size": 10},
    ("policy", "min_margin"): {"of": "logits"},
}
MARK = "method"  # every run folder of that time has this setting of `base`, and no later one has it


def with_former(kind: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return a "policy" or "network" of such a folder, {"name": …, parameters}, with the parameters that it had.

    >>> with_former("policy", {"name": "min_margin", "weighting": "published"})
    {'name': 'min_margin', 'of': 'logits', 'weighting': 'published'}
    """
    return {"name": part.get("name"), **_FORMER.get((kind, str(part.get("name"))), {}), **part}
