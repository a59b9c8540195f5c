"""One run, from base initialisation to the last session. It can be stopped at any moment and goes on where it was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.cache import alone
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.experiment.folder import RunFolder, environment, held
from graspcl.experiment.live import Live, one_line, planned
from graspcl.experiment.loggers import catch_up, make_loggers
from graspcl.experiment.measure import (
    DriftMeter,
    HeldOut,
    Meter,
    Patience,
    TestSet,
    arrivals,
    samples_within,
    session_budget,
    stored_distances,
)
from graspcl.experiment.start import Ready, new_learner, ready, start_state
from graspcl.learner import Diverged, Rehearsal, SessionLog
from graspcl.metric import Accuracies, accuracies, head_and_tail, summarise_drift
from graspcl.policy import Budget
from graspcl.progress import Progress, Silent
from graspcl.random import generator
from graspcl.settings.config import Config, as_plain
from graspcl.settings.rules import check
from graspcl.stream import save_stream

_TOTALS = (
    "updates", "selection_seconds", "training_seconds", "selection_forward", "selection_backward", "training_forward",
    "training_backward", "updates_saved",
)  # fmt: skip


def run(config: Config, folder: Path, progress: Progress | None = None, base: Path | None = None) -> dict[str, Any]:
    """Learn a stream with the configured learner and policy; returns the summary, and leaves everything in `folder`.

    A run of the same settings that was stopped there goes on, to the same bytes as if it had not been stopped; one
    that was finished is not repeated. States that several runs begin from are shared in the folder `base`.
    """
    check(config)
    progress = progress or Silent()
    if held(folder, config) and RunFolder(folder).finished:
        progress.note(f"{folder} holds this run already, finished")
        summary = RunFolder(folder).summary()
        catch_up(config.log, as_plain(config), folder, summary, progress.note)
        return summary
    with contextlib.ExitStack() as stack:
        live = None
        if held(folder, config):  # a run that goes on is at work from now on; a new one when its data are found good
            live = _at_work(folder, stack)
        start = ready(config, progress)
        live = live or _at_work(folder, stack)
        return Run(config, start, RunFolder(folder), progress, base or folder / "base", live).finish()


def _at_work(folder: Path, stack: contextlib.ExitStack) -> Live:
    RunFolder(folder)  # is made, if need be: the lock lies in it
    stack.enter_context(alone(folder))
    return stack.enter_context(Live(folder))


class Run:
    """A run under way, as far as its last checkpoint tells."""

    def __init__(
        self, config: Config, start: Ready, folder: RunFolder, progress: Progress, base: Path, live: Live
    ) -> None:
        self.config, self.start, self.folder, self.progress, self.live = config, start, folder, progress, live
        self.stream = start.stream(config)
        self.learner = new_learner(config, start)
        samples = start.samples
        train, test = np.array(samples.train), np.array(samples.test)
        test = test[start.readable[test] & np.isin(samples.labels[test], [*self.stream.home])]
        self.tests = TestSet(start.codes[test], samples.labels[test], arrivals(self.stream, samples, test))
        self.fits = samples_within(config, self.learner, start.codes[train[start.readable[train]][:1000]])
        codec, stopper = self.learner.buffer.codec, generator(config.seed, "held out")
        self.held = HeldOut(config.stop, codec, stopper) if config.stop.patience is not None else None
        self.records: list[dict[str, Any]] = []
        self.predictions: list[Array] = []
        self.drift: dict[int, Array] = {}  # curves by session
        self.seconds, self._begun = 0.0, time.perf_counter()
        self._saved = time.perf_counter()
        self._pause = config.checkpoint.seconds
        self._meter = Meter()
        self._interrupted = self._restore(base)
        self.logger = make_loggers(config.log, progress.note)
        self.logger.begin(as_plain(config), folder.path)
        for record in self.records:  # what it was told before it does not hear again
            self.logger.session(record)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """Go to the end of the stream; returns the summary."""
        title = f"{self.config.name}: {self.config.label}, seed {self.config.seed}"
        plan = planned(self.config.budget, self.stream, self.fits)
        with self.progress.task(title, sum(plan)) as advance:
            self.live.follow(plan, advance)
            if self._interrupted is not None:
                self._session(self.stream_session, self._interrupted)
            self.live.passed(len(self.records))
            for chunk in self.stream.resume():
                self._observe(chunk.indices)
                self.live.beat()
                if chunk.ends_session:
                    self._session(chunk.session)
        return self._conclude()

    @property
    def stream_session(self) -> int:
        """The session that the last chunk belongs to."""
        return len(self.records) + 1

    def _observe(self, indices: Array) -> None:
        labels, codes = self.start.samples.labels[indices], self.start.codes[indices]
        if self.held is not None:
            stays = self.held.take(codes, labels, indices)
            indices, labels, codes = indices[stays], labels[stays], codes[stays]
        if len(indices):
            self.learner.observe_codes(codes, labels, indices)

    def _session(self, number: int, state: dict[str, Any] | None = None) -> None:
        """One rehearsal session, or the rest of one, and what it brought."""
        if state is None:
            awake, _ = self.tests.predict(self.learner, number)
            about: dict[str, Any] = {"session": number, "accuracy_before_rehearsal": self.tests.accuracy(awake, number)}
            distances = stored_distances(
                self.learner, self.config.measure.distances, generator(self.config.seed, f"distances {number}")
            )
            budget = session_budget(self.config.budget, self.learner.buffer.seen, self.fits)
            rehearsal = Rehearsal(self.learner, self.learner.session_budget(budget))
        else:
            about, distances = dict(state["about"]), state["distances"]
            rehearsal = Rehearsal(self.learner, Budget(**state["rehearsal"]["budget"]), state["rehearsal"])
        meter = DriftMeter(self.tests, self.config.measure.drift, number, generator(self.config.seed, "drift"))
        meter.curve = list(state["drift"]) if state else []
        patience = Patience(self.config.stop.patience or 1)
        if state:
            patience.best, patience.since = state["patience"]
        try:
            meter.look(self.learner)
            while not rehearsal.done:
                rehearsal.step()
                meter.look(self.learner)
                if self._enough(rehearsal, patience):
                    rehearsal.stop()
                self._save_now_and_then(
                    lambda: {
                        "about": about, "rehearsal": rehearsal.state_dict(), "drift": meter.curve,
                        "distances": distances, "patience": [patience.best, patience.since],
                    }
                )  # fmt: skip
                self.live.step(number, rehearsal)
            log = rehearsal.finish()
        except Diverged as error:
            self.progress.note(f"session {number} was given up: {error}")
            rehearsal.abandon()
            about, log = {**about, "failed": str(error)}, None
        self._record(about, log, rehearsal.budget, meter, distances)

    def _enough(self, rehearsal: Rehearsal, patience: Patience) -> bool:
        if self.held is None or rehearsal.done or rehearsal.updates % self.config.stop.every:
            return False
        return patience.lost(self.held.accuracy(self.learner))

    def _record(
        self, about: dict[str, Any], log: SessionLog | None, budget: Budget, meter: DriftMeter, distances: Array
    ) -> None:
        number = int(about["session"])
        predicted, top5 = self.tests.predict(self.learner, number)
        self.predictions.append(predicted)
        record: dict[str, Any] = {**about, "accuracy": self.tests.accuracy(predicted, number), "top5": top5}
        if log is not None:
            record |= {**asdict(log.costs), "coverage": log.coverage, "stored": log.stored}
            loss = float(log.losses[-10:].mean()) if len(log.losses) else None
            apart = 0 if self.held is None else self.held.buffer.nbytes
            record |= {"buffer_bytes": log.buffer_bytes + apart, "loss": loss}
            record["updates_saved"] = budget.updates - log.costs.updates
            plan = {"labels": log.labels, "ids": log.ids, "picks": log.picks, "distances": distances}
            self.folder.write_arrays(f"plans/session-{number}", **plan)
            if meter.curve and np.isfinite(meter.curve).all():
                self.drift[number] = np.asarray(meter.curve)
                summary = summarise_drift(meter.curve)
                record |= {"drift_auc": summary.auc, "drift_mean": summary.mean}
        record = {name: _or_none(value) for name, value in record.items()}
        self._meter.joules()  # counters begin anew at their end: they are asked now and then
        if log is not None:
            self.progress.note(one_line(record, len(self.stream.sessions)))
        self.records.append(record)
        self.folder.append_metrics(record)
        self.logger.session(record)
        self._write_results()
        self._save_now_and_then(None)
        self.live.passed(number)

    def _write_results(self) -> None:
        tests = {"labels": self.tests.labels, "arrived": self.tests.arrived}
        self.folder.write_arrays("predictions", **tests, predictions=np.stack(self.predictions))
        if self.drift:
            self.folder.write_arrays("drift", **{f"session_{n}": curve for n, curve in self.drift.items()})

    def _by_task(self, result: Accuracies) -> dict[str, float]:
        """Where sessions are tasks, the mean of their final accuracies, as IDBR reports it."""
        return {} if self.stream.tasks is None else {"alpha_tasks": float(np.nanmean(result.matrix[-1]))}

    def _conclude(self) -> dict[str, Any]:
        result = accuracies(self.predictions, self.tests.labels, self.tests.arrived)
        head, tail = head_and_tail(
            self.predictions[-1], self.tests.labels, self.stream.counts, threshold=self.config.measure.head
        )
        done = [record for record in self.records if "failed" not in record]
        totals: dict[str, Any] = {name: sum(record[name] for record in done) for name in _TOTALS}
        totals["coverage"] = float(np.mean([record["coverage"] for record in done])) if done else 0.0
        totals["buffer_bytes"] = max((record["buffer_bytes"] for record in done), default=0)
        for name in ("drift_auc", "drift_mean"):
            if drifts := [record[name] for record in done if name in record]:
                totals[name] = float(np.mean(drifts))
        summary = {
            "policy": str(self.config.policy), "learner": str(self.config.learner), "seed": self.config.seed,
            "matrix": _plain(result.matrix), **result.summary(), "alpha_head": head, "alpha_tail": tail,
            "top5": self.records[-1]["top5"], **totals,
            "seconds": self.seconds + time.perf_counter() - self._begun, "joules": self._meter.joules(),
            **self._by_task(result),
            "failed_sessions": len(self.records) - len(done), "unreadable_samples": int((~self.start.readable).sum()),
        }  # fmt: skip
        summary = {name: _or_none(value) for name, value in summary.items()}
        keep = self.config.checkpoint.keep == "state"
        if keep:
            self._save(None)
        self.live.close()  # before: a finished run has no such file, wherever it is killed
        self.folder.write_json("summary", summary)
        self.logger.end(summary)
        self.folder.drop_checkpoints(all_but=int(keep))  # not before: until then the run goes on from one of them
        return summary

    # -- state ---------------------------------------------------------------------------------------------------------

    def _restore(self, base: Path) -> dict[str, Any] | None:
        """Go to the last checkpoint, or to where the stream begins; returns the session that was interrupted."""
        state = self.folder.load_checkpoint(self.progress.note)
        if state is None:
            self._begin(base)
            return None
        if state["start"] != self.start.key:
            raise GraspError(
                f"the run in {self.folder.path} cannot go on: its data, network or codec are not those that it began "
                "with. Begin it anew in another folder, or delete this one"
            )
        self.stream.load_state_dict(state["stream"])
        self.learner.load_state_dict(state["learner"])
        if self.held is not None:
            self.held.load_state_dict(state["held"])
        self.records, self.seconds = list(state["records"]), float(state["seconds"])
        self.predictions = list(np.asarray(state["predictions"]))
        self._meter.go_on(state["joules"])
        self.drift = {int(number): np.asarray(curve) for number, curve in state["drift"].items()}
        self.folder.write_metrics(self.records)
        session: dict[str, Any] | None = state["session"]
        where = f"session {self.stream_session}"
        if session is not None:
            where += f", update {session['rehearsal']['updates']} of {session['rehearsal']['budget']['updates']}"
        self.progress.note(f"goes on from a checkpoint ({where})")
        return session

    def _begin(self, base: Path) -> None:
        samples = self.start.samples
        self.folder.clear()
        self.folder.write_config(as_plain(self.config))
        about = {"data": samples.name, "fingerprint": samples.fingerprint(), "base": self.start.backbone.log}
        self.folder.write_json("environment", {**environment(), **about})
        self.folder.write_json("classes", samples.classes)
        save_stream(self.stream, self.folder.path / "stream.npz", fingerprint=samples.fingerprint())
        if self.start.problems:
            self.folder.write_json("problems", self.start.problems)
            self.progress.note(f"problems with the data: {len(self.start.problems)}, listed in problems.json")
        state = start_state(self.config, self.start, base, self.progress)
        self.learner.load_state_dict({**state, "policy": self.learner.policy.state_dict()})
        self.predictions.append(self.tests.predict(self.learner, 0)[0])

    def _save_now_and_then(self, session: Callable[[], dict[str, Any]] | None) -> None:
        """A checkpoint if the last one is old enough; saving never takes more than a twentieth of the time."""
        if time.perf_counter() - self._saved >= self._pause:
            begin = time.perf_counter()
            self._save(None if session is None else session())
            self._saved = time.perf_counter()
            if self.config.checkpoint.seconds:
                self._pause = max(self.config.checkpoint.seconds, 20 * (self._saved - begin))

    def _save(self, session: dict[str, Any] | None) -> None:
        self.folder.save_checkpoint(
            {
                "start": self.start.key,
                "stream": self.stream.state_dict(),
                "learner": self.learner.state_dict(),
                "held": None if self.held is None else self.held.state_dict(),
                "records": self.records,
                "predictions": np.stack(self.predictions),
                "drift": self.drift,
                "joules": self._meter.joules(),
                "seconds": self.seconds + time.perf_counter() - self._begun,
                "session": session,
            }
        )


def _or_none(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and np.isnan(value) else value


def _plain(matrix: Array) -> list[list[float | None]]:
    return [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in matrix]
