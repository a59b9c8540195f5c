"""One run, from the base to the last session. It can be stopped at any moment and resumes from its checkpoint."""

from __future__ import annotations

import contextlib
import copy
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.buffer.state import saved_state
from graspcl.checks import Array, is_utf8
from graspcl.distributed import Ranks, ShardedBuffer, distributed, refuse_policy, text_digest
from graspcl.errors import GraspError
from graspcl.experiment import measure
from graspcl.experiment.automatic import resolve
from graspcl.experiment.checkpoints import Background, Stored
from graspcl.experiment.folder import ReadOnlyFolder, RunFolder, environment
from graspcl.experiment.live import ProgressFile, one_line, planned
from graspcl.experiment.loggers import catch_up, make_loggers
from graspcl.experiment.prepare import Prepared, PreparedCache, learn_base
from graspcl.experiment.signals import StopSignals
from graspcl.learner import Diverged, Rehearsal, SessionLog
from graspcl.metric import accuracies, head_and_tail, summarise_drift
from graspcl.policy import Budget, policies
from graspcl.progress import Progress, Silent
from graspcl.random import generator
from graspcl.settings.config import Config, as_plain
from graspcl.settings.read import flatten, settled
from graspcl.settings.rules import check
from graspcl.state import copied
from graspcl.stream import save_stream

_TOTALS = (
    "updates", "selection_seconds", "training_seconds", "selection_forward", "selection_backward", "training_forward",
    "training_backward", "updates_saved",
)  # fmt: skip


def run(
    config: Config, folder: Path, progress: Progress | None = None, base: Path | None = None,
    cache: PreparedCache | None = None, ranks: Ranks | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Learn a stream with the configured learner and policy.

    A stopped run of the same settings in `folder` resumes and ends in the same bytes as one that was never stopped.
    A finished run is not repeated. Returns the summary, which is also in summary.json.

    Args:
        config: settings of the run; what is "auto" is found first.
        folder: its folder.
        progress: shows the work.
        base: folder for states after the base, which several runs share; by default inside `folder`.
        cache: remembers what is prepared, for several runs in one process.
        ranks: the processes that run it together, each with a call of this function. Rank 0 prints and writes, the
            others read the same folder. Their number may change when a run resumes.
    """
    first = ranks is None or ranks.rank == 0
    progress = progress if first and progress is not None else Silent()
    place = RunFolder(folder) if first else ReadOnlyFolder(folder)
    config = resolve(config, progress)
    check_run(config)
    if ranks is not None and config.rehearses:  # before the base is trained
        refuse_policy(policies.create(config.policy.name, **config.policy.parameters), ranks.world)
    finished = first and place.holds(config) and place.finished
    if finished if ranks is None else ranks.any(finished)[0]:
        again = "to run it again, use another --out or delete the folder"
        progress.note(f"{folder} already holds this run, finished: see it with graspcl report {folder}; {again}")
        summary = place.summary()
        if first:
            catch_up(config.log, as_plain(config), folder, summary, progress.note)
        return summary
    with place.claim(config), contextlib.closing(ProgressFile(folder if first else None)) as live:
        prepared = (cache or PreparedCache()).get(config, progress)
        loop = _RunLoop(config, prepared, place, progress, base or folder / "base", live, ranks)
        with contextlib.closing(loop):
            return loop.finish()


def check_run(config: Config) -> None:
    """Refuse settings that cannot work, and loggers that are not installed, before anything is read."""
    check(config)
    for name, value in flatten(as_plain(config)).items():
        if isinstance(value, str) and not is_utf8(value):  # a path may be any bytes
            raise GraspError(f"{name} is {value!r}, which is not UTF-8, so no run can store it: change the name")
    make_loggers(config.log)


class _RunLoop:
    """A run at work: observe, rehearse and evaluate, session by session."""

    def __init__(
        self, config: Config, prepared: Prepared, folder: RunFolder, progress: Progress, base: Path, live: ProgressFile,
        ranks: Ranks | None,
    ) -> None:  # fmt: skip
        self.config, self.prepared, self.folder, self.progress, self.live = config, prepared, folder, progress, live
        self.stream = copy.copy(prepared.stream)  # it counts what has passed
        self.learner, self.ranks = prepared.new_learner(config), ranks
        if ranks is not None:
            distributed(self.learner, ranks, config.buffer.shards)
        samples, readable = prepared.samples, prepared.readable
        train, test = np.array(samples.train), np.array(samples.test)
        tested = readable[test] & np.isin(samples.labels[test], [*self.stream.home])
        latents, test = None if config.measure.coded else prepared.test_latents(), test[tested]
        inputs = prepared.codes.at(test) if latents is None else latents.at(np.flatnonzero(tested))
        arrived = measure.arrivals(self.stream, samples, test)
        self.tests = measure.TestSet(inputs, samples.labels[test], arrived, coded=latents is None)
        self.fits = measure.samples_within(config, self.learner, prepared.codes.at(train[readable[train]][:1000]))
        self.held_out: measure.HeldOut | None = None
        if config.rehearses and (config.stop.patience is not None or config.stop.keep is not None):
            rng = generator(config.seed, "held out")
            self.held_out = measure.HeldOut(config.stop, self.learner.buffer.codec, rng, self.learner.buffer.padding)
        self.records: list[dict[str, Any]] = []
        self.predictions: list[Array] = []
        self.drift: dict[str, Array] = {}  # curves: session_1 as a norm, mse_1 as a mean squared difference, and so on
        self.seconds, self._started = 0.0, time.perf_counter()
        self._saved = self._started
        self._energy, self._writer = measure.EnergyMeter(), Background()
        self._signals = StopSignals(progress.note, "" if ranks is None else ", unless a rank was lost")
        self._interrupted = self._restore(base)
        self.logger = make_loggers(config.log if folder.writable else None, progress.note)
        self.logger.begin(as_plain(config), folder.path)
        for record in self.records:  # loggers skip what they have already
            self.logger.session(record)

    def close(self) -> None:
        """Let a checkpoint that is being written be finished: until then no other process may use the folder."""
        while True:
            try:
                return self._writer.wait()
            except KeyboardInterrupt:
                continue

    def finish(self) -> dict[str, Any]:
        """Run to the end of the stream; return the summary."""
        title = f"{self.config.name}: {self.config.label}, seed {self.config.seed}"
        plan = planned(self.config.budget, self.stream, self.fits)
        with self.progress.task(title, sum(plan)) as advance, self._signals:
            self.live.follow(plan, advance)
            if self._interrupted is not None:
                self._session(len(self.records) + 1, self._interrupted)
            self.live.passed(len(self.records))
            for chunk in self.stream.resume():
                indices = chunk.indices
                codes, labels = self.prepared.codes[indices], self.prepared.samples.labels[indices]
                if self.held_out is not None:
                    kept = self.held_out.take(codes, labels, indices)
                    codes, labels, indices = codes[kept], labels[kept], indices[kept]
                if len(indices):
                    self._writer.wait_until_read()
                    self.learner.observe_codes(codes, labels, indices)
                self.live.beat()
                if chunk.ends_session:
                    self._session(chunk.session)
                elif self._signals.asked is not None or self.ranks is not None:
                    self._save_if_due(lambda: None)
            return self._conclude()

    def _session(self, number: int, state: dict[str, Any] | None = None) -> None:
        """Rehearse for one session, or for the rest of an interrupted one, and record it."""
        seed, settings, learner = self.config.seed, self.config.measure, self.learner
        meter = measure.DriftMeter(self.tests, settings.drift, number, generator(seed, "drift"))
        if state is None:
            before = self.tests.predict(learner, number)[1]
            about: dict[str, Any] = {"session": number, "accuracy_before_rehearsal": before}
            distances = measure.stored_distances(learner, settings.distances, generator(seed, f"distances {number}"))
            budget = measure.session_budget(self.config.budget, learner.buffer.seen, self.fits, number)
            rehearsal, progress, best = Rehearsal(learner, learner.session_budget(budget)), [-1.0, 0], {}
        else:
            about, distances, progress = dict(state["about"]), state["distances"], state["patience"]
            best = state.get("best", {})  # earlier versions kept none
            rehearsal = Rehearsal(learner, Budget(**state["rehearsal"]["budget"]), state["rehearsal"])
            meter.curves = measure.stored_drift(state["drift"])
        if self.held_out is not None:
            self.held_out.progress, self.held_out.best = progress, best

        def session_state() -> dict[str, Any]:
            return {
                "about": about, "rehearsal": rehearsal.state_dict(copy=False), "drift": meter.curves,
                "distances": distances, "patience": progress if self.held_out is None else self.held_out.progress,
                "best": {} if self.held_out is None else self.held_out.best,
            }  # fmt: skip

        try:
            meter.measure(self.learner)
            while not rehearsal.done:
                rehearsal.step()
                meter.measure(self.learner)
                due = not rehearsal.done and rehearsal.updates % self.config.stop.every == 0
                if due and self.held_out is not None and self.held_out.exhausted(self.learner):
                    rehearsal.stop()
                self._save_if_due(session_state)
                self.live.step(number, rehearsal)
            if self.held_out is not None:
                self.held_out.end_session(self.learner)
            self._writer.wait_until_read()
            log = rehearsal.finish()
        except Diverged as error:
            self.progress.note(f"session {number} is abandoned: {error}")
            self._writer.wait_until_read()
            rehearsal.abandon()
            about, log = {**about, "failed": str(error)}, None
        self._record(about, log, rehearsal.budget, meter, distances)

    def _record(
        self, about: dict[str, Any], log: SessionLog | None, budget: Budget, meter: measure.DriftMeter, distances: Array
    ) -> None:
        number = int(about["session"])
        predicted, accuracy, top5 = self.tests.predict(self.learner, number)
        self.predictions.append(predicted)
        record: dict[str, Any] = {**about, "accuracy": accuracy, "top5": top5}
        if log is not None:
            record |= {**asdict(log.costs), "coverage": log.coverage, "stored": log.stored}
            held_out = 0 if self.held_out is None else self.held_out.buffer.nbytes
            record["buffer_bytes"] = log.buffer_bytes + held_out
            record["loss"] = float(log.losses[-10:].mean()) if len(log.losses) else None
            record["updates_saved"] = budget.updates - log.costs.updates
            plan = {"labels": log.labels, "ids": log.ids, "picks": log.picks, "distances": distances}
            self.folder.write_arrays(f"plans/session-{number}", **plan)
            for kind, curve in meter.curves.items():
                if curve and np.isfinite(curve).all():
                    self.drift[f"{'session' if kind == 'norm' else kind}_{number}"] = np.asarray(curve)
                    name, summary = "drift" if kind == "norm" else f"drift_{kind}", summarise_drift(curve)
                    record |= {f"{name}_auc": summary.auc, f"{name}_mean": summary.mean}
        record = {name: _or_none(value) for name, value in record.items()}
        self._energy.joules()  # now and then, since counters wrap around
        if log is not None:
            self.progress.note(one_line(record, len(self.stream.sessions)))
        self.records.append(record)
        self._write_measurements()
        self.logger.session(record)
        self._save_if_due(lambda: None)
        self.live.passed(number)

    def _conclude(self) -> dict[str, Any]:
        summary = self._summary()
        keep = self.config.checkpoint.keep == "state"
        try:
            self._writer.wait()
        except GraspError as error:  # the final state may still be saved
            self.progress.note(str(error))
        if keep:
            self._save(None, whole=True)
        self.live.close()  # first: a finished run has no such file, whenever it is killed
        self.folder.write_json("summary", summary)
        self.logger.end(summary)
        self.folder.drop_checkpoints(all_but=int(keep))  # last: until then the run resumes from one of them
        return summary

    def _summary(self) -> dict[str, Any]:
        result = accuracies(self.predictions, self.tests.labels, self.tests.arrived)
        final, threshold = self.predictions[-1], self.config.measure.head
        head, tail = head_and_tail(final, self.tests.labels, self.stream.counts, threshold=threshold)
        done = [record for record in self.records if "failed" not in record]
        totals: dict[str, Any] = {name: sum(record[name] for record in done) for name in _TOTALS}
        totals["coverage"] = float(np.mean([record["coverage"] for record in done])) if done else 0.0
        totals["buffer_bytes"] = max((record["buffer_bytes"] for record in done), default=0)
        for name in ("drift_auc", "drift_mean", "drift_mse_auc", "drift_mse_mean"):
            if drifts := [record[name] for record in done if name in record]:
                totals[name] = float(np.mean(drifts))
        seen_ahead = accuracies(self.predictions, self.tests.labels, self.tests.arrived, ahead=True)
        if not np.isnan(transfer := seen_ahead.forward_transfer(100 / len(self.stream.home))):
            totals["forward_transfer"] = transfer
        if self.stream.tasks is not None:  # the mean of the tasks' final accuracies, as IDBR reports it
            totals["alpha_tasks"] = float(np.nanmean(result.matrix[-1]))
        matrix = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in result.matrix]
        summary = {
            "policy": str(self.config.policy) if self.config.rehearses else None,
            "learner": str(self.config.learner), "seed": self.config.seed,
            "matrix": matrix, **result.summary(), "alpha_head": head, "alpha_tail": tail,
            "top5": self.records[-1]["top5"], **totals,
            "seconds": self.seconds + time.perf_counter() - self._started, "joules": self._energy.joules(),
            "failed_sessions": len(self.records) - len(done),
            "unreadable_samples": int((~self.prepared.readable).sum()),
        }  # fmt: skip
        if self.config.rehearsal == "latent":
            summary["coded"] = self.tests.coded  # whether test samples passed through the codec
        if self.prepared.codec_cost:
            summary["codec_cost"] = self.prepared.codec_cost
        if seen := self.prepared.pretrained.log.get("seen"):
            summary["seen"] = seen
        return {name: _or_none(value) for name, value in summary.items()}

    def _restore(self, base: Path) -> dict[str, Any] | None:
        """Load the last checkpoint, or go to the start of the stream; return the session that was interrupted."""
        state = self.folder.load_checkpoint(self.progress.note, self.ranks, lambda ids: self.prepared.codes[ids])
        if self.ranks is not None:
            found = text_digest(None if state is None else [state["records"], state["seconds"]])
            self.ranks.agree({"the checkpoint they find": found}, f"all must see the folder {self.folder.path}")
        if state is None:
            self._start(base)
            return None
        if state["start"] != self.prepared.key:
            why = "its data, network or codec have changed since it started. Use another folder, or delete this one"
            raise GraspError(f"the run in {self.folder.path} cannot resume: {why}")
        self.stream.load_state_dict(state["stream"])
        self.learner.load_state_dict(state["learner"])
        if self.held_out is not None:
            self.held_out.load_state_dict(state["held"])
        self.records, self.seconds = list(state["records"]), float(state["seconds"])
        self.predictions = list(np.asarray(state["predictions"]))
        self._energy.spent = state["joules"] or 0.0
        names = {name: f"session_{name}" if name.isdecimal() else name for name in map(str, state["drift"])}
        self.drift = {names[str(name)]: np.asarray(curve) for name, curve in state["drift"].items()}
        self._describe(resumed=True)
        self._write_measurements()
        session: dict[str, Any] | None = state["session"]
        where = f"session {len(self.records) + 1}"
        if session is not None:
            where += f", update {session['rehearsal']['updates']} of {session['rehearsal']['budget']['updates']}"
        self.progress.note(f"resuming from a checkpoint ({where})")
        return session

    def _start(self, base: Path) -> None:
        self.folder.clear()
        plain = as_plain(settled(self.config))
        if not self.config.rehearses:
            del plain["policy"]  # so that reports do not show one
        self.folder.write_config(plain)
        self._describe(resumed=False)
        if problems := self.prepared.problems:
            self.progress.note(f"problems with the data: {len(problems)}, listed in problems.json")
        learn_base(self.config, self.prepared, self.learner, base if self.ranks is None else None, self.progress)
        self.predictions.append(self.tests.predict(self.learner, 0)[0])

    def _describe(self, resumed: bool) -> None:
        """Write the files that tell of the run; if it has resumed, those that are missing or damaged."""
        samples, folder, note = self.prepared.samples, self.folder, self.progress.note
        if not folder.writable:
            return
        fingerprint = samples.fingerprint()
        about = {"data": samples.name, "fingerprint": fingerprint, "base": self.prepared.pretrained.log}
        texts = {"environment": {**environment(), **about}, "classes": samples.classes}
        if self.prepared.problems:
            texts["problems"] = self.prepared.problems
        for name, value in texts.items():
            if not resumed or folder.drop_damaged(f"{name}.json", note):
                folder.write_json(name, value)
        if not resumed or folder.drop_damaged("stream.npz", note):
            save_stream(self.stream, folder.path / "stream.npz", fingerprint=fingerprint)
        for record in self.records:  # empty unless it has resumed
            plan = f"plans/session-{record['session']}.npz"
            if "failed" not in record and (fault := folder.fault(plan)):
                note(f"{folder.path / plan} is lost, since no session runs twice: {fault}")

    def _write_measurements(self) -> None:
        """Write what the sessions so far have measured."""
        self.folder.write_metrics(self.records)
        if self.records:
            tests = {"labels": self.tests.labels, "arrived": self.tests.arrived}
            self.folder.write_arrays("predictions", **tests, predictions=np.stack(self.predictions))
        if self.drift:
            self.folder.write_arrays("drift", **self.drift)

    def _save_if_due(self, session: Callable[[], dict[str, Any] | None]) -> None:
        """Save a checkpoint if the last one is old enough and written, or before the run is stopped.

        Saving takes at most a twentieth of the time. It happens in the background, unless every update is saved.
        """
        self._writer.check()
        every = self.config.checkpoint.seconds
        pause = max(every, 20 * self._writer.seconds) if every else 0.0
        due = time.perf_counter() - self._saved >= pause and not self._writer.busy
        stopping = self._signals.asked is not None
        if self.ranks is not None:  # all stop if one is asked to, and rank 0 decides when it is time to save
            stopping, due = self.ranks.any(stopping, due and self.folder.writable)
        if stopping or due:
            self._save(session())
            self._saved = time.perf_counter()
            if stopping or not every or self.ranks is not None:
                self._writer.wait()
        if stopping:
            if self.ranks is not None:  # torchrun ends all ranks as soon as one has left, even one that still saves
                self.ranks.any(True)
            self._signals.asked = self._signals.asked or signal.SIGTERM
            self._signals.leave()

    def _save(self, session: dict[str, Any] | None, whole: bool = False) -> None:
        """Save a checkpoint in the background; or, `whole`, one that names no segments, at once."""
        learner, buffer, ranks = self.learner, self.learner.buffer, self.ranks
        divided = isinstance(buffer, ShardedBuffer)
        if not self.folder.writable and not divided:
            return
        apart = len(buffer) > 0 and (divided or not whole)
        begin = time.perf_counter()
        without = "codes" if apart or divided else ""
        state = {
            "start": self.prepared.key, "stream": self.stream.state_dict(),
            "learner": {**learner.knowledge(copy=False), "buffer": saved_state(buffer, without, copy=False)},
            "held": None if self.held_out is None else self.held_out.state_dict(),
            "records": self.records, "predictions": np.stack(self.predictions), "drift": self.drift,
            "joules": self._energy.joules(), "seconds": self.seconds + time.perf_counter() - self._started,
            "session": session,
        }  # fmt: skip
        if divided:  # all ranks write together
            self.folder.save_checkpoint(state, Stored.of(buffer, buffer.births) if apart else None, ranks=ranks)
            self._writer.seconds = time.perf_counter() - begin
        elif whole:
            self.folder.save_checkpoint(state)
        else:
            state = copied(state)
            stored = Stored.of(buffer, state["learner"]["buffer"]["columns"]["births"]) if apart else None
            self._writer.start(lambda read: self.folder.save_checkpoint(state, stored, read))


def _or_none(value: Any) -> Any:
    """Return None for NaN, which JSON does not have."""
    return None if isinstance(value, float) and np.isnan(value) else value
