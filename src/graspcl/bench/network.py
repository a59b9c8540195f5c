"""Images per second of every stage of latent rehearsal, for every way of executing the network, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from graspcl.buffer import Buffer
from graspcl.checks import Array
from graspcl.codec import OPQ
from graspcl.data import Groceries
from graspcl.errors import GraspError, MissingExtra
from graspcl.learner import Optimiser, Siesta
from graspcl.model import Execution, mobilenet_v3_large

Call = Callable[[], object]
_CLASSES, _SECONDS = 10, 10.0  # no round of a cell starts after these seconds
_BASE = "fp32"  # the execution that all others are compared with
_EXECUTIONS = {
    _BASE: Execution(),
    "fp32 contiguous": Execution(channels_last=False),
    "bf16": Execution("bf16"),
    "fp16": Execution("fp16"),
}
_COMPILED = {"fp32 compiled": Execution(compile=True), "bf16 compiled": Execution("bf16", compile=True)}


@dataclass(frozen=True)
class Rate:
    """Images per second of a stage under an execution. `value` is None if it cannot run; `detail` says why."""

    bench: str
    what: str
    execution: str
    value: float | None = None
    ratio: float | None = None  # to fp32 in the same run
    first: float | None = None  # seconds of the first call, including compilation
    detail: str = ""
    bar: None = None
    ok: bool = True


def run(pixels: int = 224, compile: bool = False, images: int = 32, rounds: int = 7) -> Iterator[Rate]:
    """Measure MobileNetV3-Large with random weights on batches of `images` photos of `pixels` x `pixels`."""
    photos, read, source = _photos(pixels, images)
    context = f"{pixels} px, batches of {images}, {torch.get_num_threads()} threads, {source}"
    columns = {name: _learner(how) for name, how in (_EXECUTIONS | (_COMPILED if compile else {})).items()}
    base = columns[_BASE]
    if isinstance(base, str):
        raise GraspError(base)
    latents = base.network.encode(photos.to(base.device))
    vectors = latents.movedim(1, -1).flatten(0, -2)
    # Tables of the paper's size. How well they fit does not change their speed, so the vectors may repeat.
    codec = OPQ(iterations=1, samples=4096).fit(vectors.repeat(-(-256 // len(vectors)), 1))
    codes = codec.encode(latents)
    inputs, labels = codec.decode(codes.to(base.device)), np.arange(images) % _CLASSES

    def rates(what: str, calls: Mapping[str, Call | str]) -> Iterator[Rate]:
        """Time calls side by side. A text instead of a call is the reason why there is none."""
        first, later = _seconds({name: call for name, call in calls.items() if not isinstance(call, str)}, rounds)
        for name, call in calls.items():
            if isinstance(call, str):
                yield Rate("network", what, name, detail=f"refused: {call}")
                continue
            ratio = later[_BASE] / later[name] if len(later) > 1 else None
            yield Rate("network", what, name, images / later[name], ratio, first[name], context)

    def rate_all(what: str, stage: Callable[[Siesta], Call]) -> Iterator[Rate]:
        return rates(what, {name: one if isinstance(one, str) else stage(one) for name, one in columns.items()})

    yield from rates("read and decode JPEG", {_BASE: read})
    yield from rate_all("frozen forward", lambda learner: lambda: learner.network.encode(photos.to(learner.device)))
    yield from rates("OPQ encode", {_BASE: lambda: codec.encode(latents)})
    yield from rates("OPQ decode", {_BASE: lambda: codec.decode(codes.to(base.device))})
    yield from rate_all("plastic forward", lambda learner: lambda: _forward(learner, inputs))
    yield from rate_all("training step", lambda learner: _training(learner, inputs, labels))
    yield from rate_all("wake update", lambda learner: _waking(learner, codec, codes, labels))


def show(rates: Iterable[Rate]) -> None:
    """Print the rates as one table that fills while they are measured. If stopped, print what was measured so far."""
    console, found = Console(), list[Rate]()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for rate in rates:
                found.append(rate)
                live.update(table(found), refresh=True)
    finally:
        if found:
            console.print(table(found))


def table(rates: list[Rate]) -> Table:
    """Return a table with one row per stage and one column per execution. The fastest of a row is bold."""
    cells = {(rate.what, rate.execution): rate for rate in rates}
    stages, executions = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    context = next((rate.detail for rate in rates if rate.value is not None), "")
    title, caption = escape(f"images/s (times {_BASE}); {context}"), escape(_caption(rates))
    result = Table("stage", title=title, caption=caption, box=SIMPLE_HEAD)
    for execution in executions:
        result.add_column(execution, justify="right")
    for stage in stages:
        row = [cells.get((stage, execution)) for execution in executions]
        best = max((rate.value for rate in row if rate and rate.value), default=None)
        result.add_row(stage, *(_cell(rate, best) for rate in row))
    return result


def _cell(rate: Rate | None, best: float | None) -> str:
    if rate is None or rate.value is None:
        return "refused" if rate else ""
    if rate.ratio is None:
        return f"{rate.value:,.1f}"
    text = f"{rate.value:,.1f} ({rate.ratio:.2f})"
    return f"[bold]{text}[/bold]" if rate.value == best else text


def _caption(rates: list[Rate]) -> str:
    """Reasons for refusals, and how long the first calls of compiled networks took."""
    lines = [f"{rate.execution}: {rate.detail}" for rate in rates if rate.value is None]
    for name in _COMPILED:
        if seconds := sum(rate.first or 0.0 for rate in rates if rate.execution == name):
            lines.append(f"{name}: {seconds:,.0f} s until the first calls were compiled")
    return "\n".join(dict.fromkeys(lines))


def _photos(pixels: int, images: int) -> tuple[torch.Tensor, Call | str, str]:
    """Images [images, 3, pixels, pixels], a function that reads them (or why there is none), and their description."""
    try:
        groceries = Groceries(pixels)
    except MissingExtra as error:
        noise, source = torch.Generator().manual_seed(0), f"random images ({error})"
        return torch.randint(256, (images, 3, pixels, pixels), generator=noise, dtype=torch.uint8), source, source
    chosen = groceries.train[np.arange(images) % len(groceries.train)]
    return groceries.read(chosen), lambda: groceries.read(chosen), "photos of groceries"


def _learner(execution: Execution) -> Siesta | str:
    try:
        execution = execution.resolve()
    except GraspError as error:
        return str(error)
    network = mobilenet_v3_large(generator=torch.Generator().manual_seed(0))
    learner = Siesta(network, Buffer(), execution=execution)
    learner.add_classes(np.arange(_CLASSES))
    execution.compiled(network.frozen)  # a learner only compiles the plastic part, which is called far more often
    return learner


def _forward(learner: Siesta, inputs: torch.Tensor) -> None:
    learner.network.eval()
    with torch.no_grad():
        learner.network(inputs)


def _training(learner: Siesta, inputs: torch.Tensor, labels: Array) -> Call:
    network, scaler = learner.network, learner.execution.scaler()
    optimizer = Optimiser(lr=0.01).build(network.plastic_parameters())
    rows = learner.rows(torch.as_tensor(labels, device=learner.device))

    def call() -> None:
        network.train()
        loss = torch.nn.functional.cross_entropy(network(inputs).logits, rows)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return call


def _waking(learner: Siesta, codec: OPQ, codes: torch.Tensor, labels: Array) -> Call:
    learner.buffer = Buffer(codec=codec)
    return lambda: learner.observe_codes(codes, labels)


def seconds(call: Call) -> float:
    """Return the time of one call; all threads work on it, so this is not CPU time."""
    begin = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _seconds(calls: dict[str, Call], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the first call, and the median of later ones. Rounds alternate, so that load affects all alike."""
    first = {name: seconds(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if sum(times[name]) < _SECONDS:
                times[name].append(seconds(call))
    return first, {name: median(spent) for name, spent in times.items()}
