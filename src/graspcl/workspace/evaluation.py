"""How well a workspace predicts samples whose classes are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.progress import Progress
from graspcl.workspace.calibration import auroc, calibration_error, score
from graspcl.workspace.classifier import Classifier
from graspcl.workspace.judging import Tally

_READ = 64  # samples that are predicted at a time


@dataclass(frozen=True)
class Evaluation:
    """What was found; all of it but `foreign` and `auroc` is about classes that the workspace knows."""

    overall: Tally
    classes: dict[str, Tally]
    confused: list[tuple[str, str, int]]  # correct class, predicted class, and how often; most frequent first
    calibration_error: float  # 0..1, see `calibration.calibration_error`
    unknown: Tally  # samples that are called unknown, wrongly
    foreign: Tally  # samples of classes that the workspace does not know: those that are called unknown
    auroc: float | None  # of telling both kinds apart; None without samples of other classes
    marks: bool  # whether unknown samples can be told at all, see `Calibration.marks`
    problems: list[str]


def evaluate(classifier: Classifier, samples: Samples[Any], rows: Array, progress: Progress) -> Evaluation:
    """Predict the samples at `rows` [n] and compare with their classes."""
    row_of = {name: row for row, name in enumerate(classifier.classes)}
    # Of the probabilities only the largest are kept: all of many samples and classes would fill the memory.
    truths, taken_rows, largest, unknown, scores, problems = list[str](), [], [], [], [], [*samples.problems]
    with progress.task(f"predicting {samples.name}", len(rows)) as advance:
        for begin in range(0, len(rows), _READ):
            part = rows[begin : begin + _READ]
            inputs, kept, faults = samples.read_some(part)
            problems += faults
            if len(kept):
                logits = classifier.logits(inputs)
                probabilities = classifier.calibration.probabilities(logits)
                taken_rows.append(probabilities.argmax(1))
                largest.append(probabilities.max(1))
                unknown.append(classifier.calibration.unknown(logits))
                scores.append(score(logits))
                truths += [samples.classes[label] for label in samples.labels[part[kept]].tolist()]
            advance(len(part))
    if not truths:
        unread = f"none of the samples of {samples.name} can be read: {problems[0]}" if problems else ""
        raise GraspError(unread or "there are no samples to evaluate")
    targets = np.array([row_of.get(name, -1) for name in truths])
    known, marked, values = targets >= 0, np.concatenate(unknown), np.concatenate(scores)
    taken, named = np.concatenate(taken_rows), np.array(truths, object)
    right = taken == targets
    numbers, rights = Counter(truths), Counter(named[right].tolist())
    pairs = Counter(
        (truth, classifier.classes[row])
        for truth, row in zip(named[known & ~right], taken[known & ~right], strict=True)
    )
    return Evaluation(
        Tally(int(right[known].sum()), int(known.sum())),
        {name: Tally(rights[name], numbers[name]) for name in classifier.classes if name in numbers},
        [(*pair, number) for pair, number in pairs.most_common()],
        calibration_error(np.concatenate(largest)[known], right[known]) if known.any() else float("nan"),
        Tally(int(marked[known].sum()), int(known.sum())),
        Tally(int(marked[~known].sum()), int((~known).sum())),
        auroc(values[known], values[~known]) if known.any() and not known.all() else None,
        classifier.calibration.marks, problems,
    )  # fmt: skip
