"""Predictions for the test samples: of known classes only, right at rank 1 and within the first five."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from graspcl.experiment.measure import TestSet

CLASSES = [40, 7, 33, 12, 25, 6, 91, 58, 3, 70, 64, 19]  # labels in the order of the network's outputs


def learner(classes=CLASSES):
    """Its codes are its logits."""
    return SimpleNamespace(classes=list(classes), outputs=lambda codes, kind, coded: codes[:, : len(classes)])


def ranked(ranks, number=12):
    """Logits in which the class at place 0 has each of these ranks, from 1."""
    return torch.stack([torch.arange(number).flip(0).roll(1 - rank).float() for rank in ranks])


def test_a_label_counts_within_the_first_five():
    codes = ranked([1, 2, 5, 6, 10, 12])
    own = torch.stack([row.argsort(descending=True).argsort()[0] + 1 for row in codes])
    assert own.tolist() == [1, 2, 5, 6, 10, 12]
    tests = TestSet(codes, np.full(6, CLASSES[0]), np.zeros(6, int))
    predicted, accuracy, top5 = tests.predict(learner(), 0)
    assert predicted.tolist() == [CLASSES[int(place)] for place in codes.argmax(1)]
    assert (accuracy, top5) == (pytest.approx(100 / 6), 50)


def test_classes_to_come_are_not_predicted_and_do_not_count():
    tests = TestSet(ranked([1, 2, 1, 1]), np.array([40, 40, 40, 99]), np.array([0, 1, 2, 2]))
    predicted, accuracy, top5 = tests.predict(learner(), 1)
    assert predicted[[0, 2, 3]].tolist() == [40, 40, -1]  # 40 is known already, 99 is not
    assert (accuracy, top5) == (50, 100)
    nothing = TestSet(tests.inputs[:3], np.full(3, 99), np.full(3, 5)).predict(learner(), 1)
    assert nothing[0].tolist() == [-1, -1, -1] and np.isnan(nothing[1:]).all()
    few = TestSet(ranked([3], 3), np.array([40]), np.array([0])).predict(learner(CLASSES[:3]), 0)
    assert few[1:] == (0, 100)  # three classes: all are among the first five
