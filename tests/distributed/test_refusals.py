"""What ranks cannot do exactly is refused by name, before anything is trained."""

import numpy as np
import pytest
import torch
from torch import nn
from worlds import SMOOTH, make_learner

from graspcl import Buffer, GraspError, Learner
from graspcl.distributed import Ranks, joined, refuse_policy
from graspcl.distributed.learners import refuse
from graspcl.distributed.ranks import _reason
from graspcl.distributed.shards import ShardedBuffer
from graspcl.model import SplitNetwork
from graspcl.policy import policies


def learner_with(layer):
    example = torch.zeros(2, 4)
    plastic = nn.Sequential(nn.Linear(4, 4), layer)
    network = SplitNetwork.of(nn.Identity(), plastic, example, generator=torch.Generator().manual_seed(0))
    return Learner(network, Buffer(), "uniform")


def test_batch_statistics():
    with pytest.raises(GraspError, match=r"BatchNorm1d 'plastic.1' cannot be trained on several ranks.*GroupNorm"):
        refuse(learner_with(nn.BatchNorm1d(4)))


def test_dropout_of_the_global_generator():
    with pytest.raises(GraspError, match=r"Dropout 'plastic.1' cannot be .* global generator; use .*SeededDropout"):
        refuse(learner_with(nn.Dropout(0.5)))


def test_what_mixes_no_rows_is_allowed():
    learner = make_learner({"dropout": 0.5})
    refuse(learner)
    refuse(learner_with(nn.LayerNorm(4)))
    assert not learner.network.training


def test_a_buffer_in_a_folder_is_not_divided(tmp_path):
    with pytest.raises(GraspError, match=r"buffer\.shards: a buffer in a folder cannot be divided"):
        ShardedBuffer.of(Buffer(storage=tmp_path), None)


def test_there_must_be_ranks_to_join(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(GraspError, match="start the program with torchrun"), joined():
        pass
    with pytest.raises(GraspError, match="join the ranks first"):
        Ranks()


def test_ranks_that_observe_other_samples_are_told(worlds):
    failed, _ = worlds.attempt(2, "observe_apart")
    assert len(failed) == 2
    for said in failed:
        assert "the ranks differ in what they store" in said
        assert "let every rank observe the same samples in the same order" in said


# In what rank 1 differs, and what is said of it.
DIFFERENCES = [
    ({"parameters": {"corrected": False}}, "their learners' parameters"),
    ({"capacity": 50}, "their capacities"),
    ({"int8": True}, "their codecs"),
    ({"doubled": True}, "the codes they store"),
    ({"rule": "reservoir"}, "their settings"),
]


def test_learners_that_differ_are_refused_by_name(worlds):
    for result in worlds.run(2, "differ", cases=[case for case, _ in DIFFERENCES]):
        for (case, what), said in zip(DIFFERENCES, result["said"], strict=True):
            assert what in said and "make the learner with the same settings and seeds" in said, case


@pytest.mark.parametrize("policy", SMOOTH)
def test_policies_whose_draws_depend_on_rounding(policy):
    ranked = policies.create(policy)
    said = rf"policy '{policy}' with weighting=rank .* set weighting=softmax \(--policy.weighting softmax\)"
    with pytest.raises(GraspError, match=said):
        refuse_policy(ranked, 2)
    refuse_policy(ranked, 1)
    for parameters in ({"weighting": "softmax"}, {"weighting": "published"}, {"mode": "top"}):
        refuse_policy(policies.create(policy, **parameters), 2)


def test_ranked_scores_are_refused_before_anything_is_trained(worlds):
    failed, _ = worlds.attempt(2, "learn_all", cases=[{"policy": "max_loss"}])
    assert len(failed) == 2 and all("set weighting=softmax" in said for said in failed)


@pytest.mark.parametrize("how", [{}, {"shards": "ranks"}])
def test_a_rank_that_fails_alone_says_why_and_exchanges_nothing_more(worlds, how):
    failed, (result,) = worlds.attempt(2, "fail_alone", how=how, timeout=20.0)
    assert result == {"said": "no memory is left", "sent": {}}
    assert len(failed) == 1 and "rank 0 of 2 has lost the others" in failed[0]


def test_dropout_of_a_share_is_that_of_the_whole_batch():
    from graspcl.model import SeededDropout

    x = torch.ones(7, 5)
    whole = SeededDropout(0.5, torch.Generator().manual_seed(3))(x)
    parts = []
    for rows in (slice(0, 4), slice(4, 7)):
        part = SeededDropout(0.5, torch.Generator().manual_seed(3))
        part.rows = rows, 7
        parts.append(part(x[rows]))
    assert np.array_equal(whole, torch.cat(parts))


def test_a_lost_rank_is_told_without_the_place_in_gloos_source():
    said = "[/a/b/pair.cc:553] Connection closed by peer [::1]:52. This is typically caused by a crash. GLHF!\nmore"
    assert _reason(RuntimeError(said)) == "Connection closed by peer [::1]:52"
    assert _reason(RuntimeError("Timed out waiting 600000ms")) == "Timed out waiting 600000ms"
