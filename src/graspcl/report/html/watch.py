"""The page of a run under way, served to this machine alone, until the run is finished or stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from graspcl.errors import GraspError
from graspcl.report.html.page import Report, as_bytes, content, render
from graspcl.report.html.parts import safe
from graspcl.report.html.reading import Run, number, read_run

_CHANGING = ("metrics.jsonl", "predictions.npz", "summary.json", "config.toml")
_BEAT = "progress.json"  # there while a process is at work on the run
_SILENCE = 60.0  # seconds without news after which a run on another machine counts as stopped
_LOOKS = 3  # in a row that find nobody at work: one of them may fall between two files of a run

End = Literal["finished", "stopped"]


def watch(run: Path, tell: Callable[[str], None], port: int = 0, refresh: float = 3.0) -> End:
    """Serve the page of a run on 127.0.0.1, `tell` its address, and return once the run is finished or stopped.

    `run` is its folder, or one above it: then the run below it that was last at work. The last state is still served
    for a while if a browser has asked for the page. Port 0 is any free one.
    """
    live = Live(_under_way(run), refresh)
    if live.finished():
        raise GraspError(f"the run in {live.path} is finished; its report: graspcl report '{live.path}'")
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(live))
    except (OSError, OverflowError) as error:
        raise GraspError(f"port {port} cannot be used: {error}; without --port any free one is taken") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        tell(f"http://127.0.0.1:{server.server_port}/")
        while (end := live.look()) is None:
            time.sleep(min(1.0, refresh))
        if live.asked:  # every page that is open asks once more
            time.sleep(2 * refresh)
        return end
    finally:
        server.shutdown()
        server.server_close()


class Live:
    """A run's page and its data, made anew whenever its files have changed."""

    def __init__(self, path: Path, refresh: float = 3.0) -> None:
        self.path, self.refresh = path, refresh
        self.asked = False
        self._lock = threading.Lock()
        self._idle = 0  # looks in a row that found nobody at work
        self._seen: Any = None
        self._run, self._content = read_run(path), dict[str, Any]()

    def finished(self) -> bool:
        """Whether the run is."""
        return (self.path / "summary.json").exists()

    def look(self) -> End | None:
        """Whether the run has come to an end; nobody may be at work for a moment."""
        if self.finished():
            return "finished"
        self._idle = 0 if at_work(_beat(self.path)) else self._idle + 1
        return "stopped" if self._idle >= _LOOKS else None

    def page(self) -> bytes:
        """As HTML."""
        self.asked = True
        run = read_run(self.path)
        return as_bytes(render(Report([run]), self._progress(run), self.refresh))

    def data(self) -> bytes:
        """What of the page changes, as JSON, with a `version` that tells whether it has."""
        with self._lock:
            finished = self.finished()
            files = [self.path / name for name in _CHANGING]
            seen = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
            if seen != self._seen:
                self._run = read_run(self.path)
                self._content, self._seen = content(Report([self._run])), seen
            body = f"{self._progress(self._run)}\n{self._content['body']}"
            data = {**self._content, "body": body, "finished": finished, "stopped": self._stopped}
        data["version"] = hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]
        return json.dumps(data, allow_nan=False).encode()

    @property
    def _stopped(self) -> bool:
        return self._idle >= _LOOKS and not self.finished()

    def _progress(self, run: Run) -> str:
        return progress(run, _beat(self.path), self._stopped)


# -- how far a run is --------------------------------------------------------------------------------------------------


def at_work(beat: dict[str, Any]) -> bool:
    """Whether the process that wrote a progress.json still is; of one on another machine its last news tell."""
    pid = beat.get("pid")
    if not isinstance(pid, int) or pid < 1:
        return False
    if beat.get("host") != socket.gethostname() or os.name == "nt":  # where to ask for a process is to end it
        return time.time() - number(beat.get("time")) < _SILENCE
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def _beat(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _BEAT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def progress(run: Run, beat: dict[str, Any] | None = None, stopped: bool = False) -> str:
    """How far a run is, as HTML: sessions, the last loss and accuracies, time so far and what may be left of it.

    `beat` is what its progress.json says of the session under way.
    """
    beat = {} if beat is None or run.finished or stopped else beat  # a run goes on from its checkpoint, not from there
    done, total = run.sessions
    lines = run.record.sessions
    last = lines[-1] if lines else {}
    spent = [number(line.get("training_seconds")) + number(line.get("selection_seconds")) for line in lines]
    spent = [seconds for seconds in spent if not math.isnan(seconds)]
    left = number(beat.get("seconds_left"))
    if math.isnan(left) and total is not None and spent:
        recent = spent[-3:]  # sessions grow with the buffer: the last ones tell more than all
        left = max(0, total - done) * sum(recent) / len(recent)
    facts = {"Sessions": f"{done} of {'?' if total is None else total}"}
    session, update, updates = (number(beat.get(name)) for name in ("session", "update", "updates"))
    if session > done:
        facts[f"Updates of session {session:.0f}"] = f"{update:.0f} of {updates:.0f}"
        spent.append(max(0.0, number(beat.get("seconds"))))
    loss = beat.get("loss") if session > done else last.get("loss")
    facts |= {
        "Accuracy before rehearsal": _said(last.get("accuracy_before_rehearsal"), " %"),
        "Accuracy after rehearsal": _said(last.get("accuracy"), " %"),
        "Loss": _said(loss, "", 3),
        "Rehearsed for": duration(sum(spent)),
        "About to go": "–" if run.finished or stopped or math.isnan(left) else duration(left),
    }
    said = "".join(f"<div><dt>{name}</dt><dd>{safe(text)}</dd></div>" for name, text in facts.items())
    state = "Under way; this page follows it."
    if run.finished or stopped:
        state = "Finished." if run.finished else "Stopped; the same command goes on."
    return (
        f'<section class="card" data-part="progress"><h2>Progress</h2><p class="about">{state}'
        f" <span data-lost hidden>The connection is lost.</span></p>{_bar(beat, done, total)}"
        f'<dl class="facts">{said}</dl></section>'
    )


def _bar(beat: dict[str, Any], done: int, total: int | None) -> str:
    """By updates of all sessions, where they are known."""
    at, end = number(beat.get("done")), number(beat.get("total"))
    if end > 0:
        return f'<progress max="{end:.0f}" value="{at:.0f}" aria-label="updates"></progress>'
    return f'<progress max="{total or max(1, done)}" value="{done}" aria-label="sessions"></progress>'


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(5.2), duration(75), duration(7260)
    ('5 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _said(value: Any, unit: str, digits: int = 2) -> str:
    found = number(value)
    return "–" if math.isnan(found) else f"{found:.{digits}f}{unit}"


def _under_way(path: Path) -> Path:
    if not path.is_dir():
        raise GraspError(f"there is no folder {path}")
    if (path / "config.toml").exists():
        return path
    found = [file.parent for file in path.rglob("config.toml") if not (file.parent / "summary.json").exists()]
    if not found:
        raise GraspError(f"there is no unfinished run in {path}; a run is watched by its folder, with its config.toml")
    return max(found, key=_changed)


def _changed(folder: Path) -> float:
    return max(file.stat().st_mtime for file in (folder / name for name in (*_CHANGING, _BEAT)) if file.exists())


def _handler(live: Live) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET of the page and of its data, and nothing else."""

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # a browser may go whenever it likes
                super().handle()

        def do_GET(self) -> None:
            _, port, *_ = self.connection.getsockname()
            if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
                self.send_error(HTTPStatus.FORBIDDEN)  # another site's name for this machine
            elif self.path == "/":
                self._send(live.page(), "text/html; charset=utf-8")
            elif self.path == "/data.json":
                self._send(live.data(), "application/json")
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))),
                                ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """No line per request."""

    return Handler
