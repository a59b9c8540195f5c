"""The smallest codec that costs little accuracy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from graspcl.checks import NonNegative, checked
from graspcl.codec.codec import Codec, codecs
from graspcl.errors import GraspError

_CODEBOOKS = 8  # at least
_GROWTH = 1.6  # from one number of codebooks to the next


@codecs.register("auto")
@checked
@dataclass
class Auto(Codec):
    """The smallest of several codecs that costs at most `tolerance` points of accuracy, as a run measures it.

    A run tries OPQ with 8 codebooks and more, then int8, then half (`ladder`), and gives the first one within the
    tolerance to `choose`. From then on this codec behaves as the chosen one. Its state names the choice.

    >>> auto = Auto().choose(codecs.create("half"))
    >>> auto.encode(torch.ones(2, 3)).dtype, auto.state_dict()
    (torch.float16, {'choice': '{"name": "half"}'})
    """

    tolerance: NonNegative = 1.0
    _chosen: Codec | None = field(default=None, init=False, repr=False)

    error = "as much as the tolerance allows"

    def choose(self, codec: Codec) -> Auto:
        """Use `codec`, which is trained if it has to be."""
        self._chosen = codec
        return self

    @property
    def chosen(self) -> Codec:
        """The codec in use."""
        if self._chosen is None:
            raise GraspError("the codec 'auto' is chosen when a run is prepared; use another one, such as 'half', here")
        return self._chosen

    @property
    def nbytes(self) -> int:
        return self.chosen.nbytes

    @property
    def locations(self) -> int:
        return self.chosen.locations

    def fit(self, inputs: torch.Tensor) -> Auto:
        self.chosen.fit(inputs)
        return self

    def encode(self, inputs: torch.Tensor) -> Any:
        return self.chosen.encode(inputs)

    def decode(self, codes: Any) -> torch.Tensor:
        return self.chosen.decode(codes)

    def state_dict(self) -> dict[str, Any]:
        if self._chosen is None:
            return {}
        return {"choice": json.dumps(described(self._chosen)), **self._chosen.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._chosen = codecs.create(**json.loads(str(state["choice"])))
            self._chosen.load_state_dict({name: value for name, value in state.items() if name != "choice"})


def described(codec: Codec) -> dict[str, Any]:
    """Return the name and the parameters of a codec, with which `codecs.create` makes such a one."""
    return {"name": codec.name, **{key: getattr(codec, key) for key in codecs.parameters(codec.name)}}


def ladder(dim: int) -> Iterator[tuple[str, dict[str, int], int, int]]:
    """Yield codecs for vectors of `dim` numbers: name, parameters, bytes of a vector, and bytes of tables.

    >>> [(name, size) for name, _, size, _ in ladder(80)]
    [('opq', 8), ('opq', 16), ('opq', 40), ('int8', 80), ('half', 160)]
    """
    last = 0.0
    for codebooks in range(_CODEBOOKS, dim // 2 + 1):
        if dim % codebooks == 0 and codebooks >= _GROWTH * last:
            yield "opq", {"codebooks": codebooks}, codebooks, 4 * dim * (dim + 256)
            last = codebooks
    yield "int8", {}, dim, 8 * dim
    yield "half", {}, 2 * dim, 0
