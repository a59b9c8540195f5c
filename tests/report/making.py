"""Run folders with made-up numbers, written in milliseconds; their files have the form of real ones."""

from __future__ import annotations

import json

import numpy as np
import tomli_w

from graspcl.metric import accuracies
from graspcl.report.figures import all_figures

BASE, PER_SESSION, TESTS, STORED, BATCH = 2, 1, 10, 40, 8


def make_run(
    folder, policy="grasp", seed=0, *, name="toy", learner="siesta", times=1.0, capacity=None, sessions=3, skill=0.7,
    drift=False, done=None, classes=None, right=None, updates=5, config=None,
):  # fmt: skip
    """A run of `sessions` sessions, of which `done` are done; each test sample is predicted rightly with odds `skill`.

    `right` gives the final hits instead, where they must be known: how many of each class. `config` changes settings.
    """
    rng = np.random.default_rng([seed, int(100 * times), len(policy)])
    done = sessions if done is None else done
    number = BASE + sessions * PER_SESSION
    home = [max(0, k - BASE + 1) for k in range(number)]
    classes = classes or [f"class {k}" for k in range(number)]
    folder.mkdir(parents=True)
    settings = {
        "name": name, "rehearsal": "latent", "seed": seed, "policy": {"name": policy}, "learner": {"name": learner},
        "data": {"path": "/somewhere/toys"}, "stream": {"kind": "class_incremental", "sessions": sessions},
        "buffer": {} if capacity is None else {"capacity": capacity}, "budget": {"passes": 1.0, "times": times},
        **(config or {}),
    }  # fmt: skip
    (folder / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    write_json(folder / "environment.json", {"python": "3.11", "packages": {"numpy": "2.0"}})
    write_json(folder / "classes.json", classes)
    np.savez(
        folder / "stream.npz", classes=np.arange(number), home=np.array(home), lengths=np.full(sessions, 10),
        header=np.array("{}"),
    )  # fmt: skip
    labels = np.repeat(np.arange(number), TESTS)
    hit = rng.random((done + 1, len(labels))) < skill
    if right is not None:
        hit[-1] = np.tile(np.arange(TESTS) < right, number) if isinstance(right, int) else right
    predictions = np.where(hit, labels, (labels + 1) % number)
    arrived = np.array(home)[labels]
    for t in range(done + 1):
        predictions[t, arrived > t] = -1
    np.savez(folder / "predictions.npz", labels=labels, arrived=arrived, predictions=predictions)
    stored = rng.integers(0, number, STORED)
    plan = {"labels": stored, "ids": np.arange(STORED), "distances": rng.random(STORED)}
    (folder / "plans").mkdir()
    lines = []
    for t in range(1, done + 1):
        picks = rng.integers(0, STORED, (updates, BATCH)).astype(np.int32)
        np.savez(folder / "plans" / f"session-{t}.npz", **plan, picks=picks)
        lines.append(
            {"session": t, "accuracy_before_rehearsal": 40.0, "accuracy": 50.0 + t, "loss": 1.5, "updates": updates,
             "training_seconds": 2.0, "selection_seconds": 0.5, "drift_auc": 0.1 * t, "drift_mean": 0.01 * t}
        )  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if drift:
        curves = {f"{kind}_{t}": rng.random(updates) for kind in ("session", "mse") for t in range(1, done + 1)}
        np.savez(folder / "drift.npz", **curves)
    if done == sessions:
        finish(folder)
    return folder


def finish(folder):
    """The summary of a run that has come to its end."""
    import tomllib

    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    with np.load(folder / "predictions.npz") as found, np.load(folder / "stream.npz") as stream:
        arrival = dict(zip(stream["classes"].tolist(), stream["home"].tolist(), strict=True))
        result = accuracies(list(found["predictions"]), found["labels"], arrival)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    updates = sum(line["updates"] for line in lines)
    slow = 1 + 2 * (config["policy"]["name"] == "mir")
    capacity = config["buffer"].get("capacity", 1000)
    summary = {
        "policy": config["policy"]["name"], "learner": config["learner"]["name"], "seed": config["seed"],
        "matrix": np.where(np.isnan(result.matrix), None, result.matrix).tolist(),
        **{key: None if np.isnan(value) else value for key, value in result.summary().items()},
        "alpha_head": None, "alpha_tail": None, "top5": 90.0, "updates": updates, "coverage": 0.5,
        "selection_seconds": 1.0 * slow, "training_seconds": 4.0, "seconds": 6.0, "joules": None,
        "selection_forward": 100, "selection_backward": 0, "training_forward": 8 * updates,
        "training_backward": 8 * updates, "updates_saved": 0, "buffer_bytes": 100 * capacity,
        "failed_sessions": 0, "unreadable_samples": 0,
    }  # fmt: skip
    write_json(folder / "summary.json", summary)


def write_json(path, value):
    """A file."""
    path.write_text(json.dumps(value), encoding="utf-8")


def make_sweep(folder, policies=("grasp", "uniform_balanced", "uniform", "mir"), seeds=2, **others):
    """Policies, seeds, two budgets and two buffers: a comparison that fills every figure."""
    for policy in policies:
        for seed in range(seeds):
            for times in (0.5, 1.0):
                for capacity in (20, None):
                    right = int(2 + 4 * times) + (policy == "grasp") + (capacity is None) - seed
                    place = folder / policy / f"seed-{seed}-{times}-{capacity}"
                    spend = {"times": times, "capacity": capacity, "updates": int(10 * times)}
                    make_run(place, policy, seed, right=right, drift=True, **spend, **others)
    return folder


def only(report):
    """The one experiment of a report."""
    assert len(report.experiments) == 1
    return report.experiments[0]


def column(table, heading):
    """Cells below a heading."""
    place = [column.heading for column in table.columns].index(heading)
    return [row[place] for row in table.rows]


def by_name(experiment):
    """Figures."""
    return {figure.name: figure for figure in all_figures(experiment)}
