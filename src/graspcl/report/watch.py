"""Serve the page of a running run to this machine alone, until the run is finished or stopped."""

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
from graspcl.files import read_regular
from graspcl.integrity import Damaged, read_object
from graspcl.machine import process_start
from graspcl.report.measures import NONE
from graspcl.report.model import Report
from graspcl.report.read import Run, number, read_run
from graspcl.report.render.html import render_part, render_report

_RESULTS = ("metrics.jsonl", "predictions.npz", "summary.json", "config.toml")
_HEARTBEAT = "progress.json"  # exists while a process works on the run
_LOADING = 10.0  # seconds that a browser may take to draw a page, before it asks for news
_SILENCE = 60.0  # seconds without news after which a run on another machine counts as stopped
_PATIENCE = 10.0  # seconds in which a request must arrive, and in which its answer must be taken
_CONNECTIONS = 32  # at the same time
_LOOKS = 3  # in a row without a process: a single one may fall between two files of a run

End = Literal["finished", "stopped"]


def watch(run: Path, announce: Callable[[str], None], port: int = 0, refresh: float = 3.0) -> End:
    """Serve the page of a run on 127.0.0.1 and return when the run is finished or stopped.

    Open pages still get the final state: the server stays for two refreshes after the last request.

    Args:
        run: Its folder, or a folder above it: then the unfinished run below it that changed last.
        announce: Called with the address of the page.
        port: Port of the page; 0 for any free one.
        refresh: Seconds between two looks at the run.
    """
    watched = WatchedRun(_running(run), refresh)
    if watched.finished:
        raise GraspError(f"the run in {watched.path} is finished; show it with: graspcl report '{watched.path}'")
    try:
        server = _Server(("127.0.0.1", port), _handler(watched))
    except (OSError, OverflowError) as error:
        raise GraspError(f"port {port} cannot be used: {error}; without --port a free one is taken") from error
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        announce(f"http://127.0.0.1:{server.server_port}/")
        while (end := watched.check_end()) is None:
            time.sleep(min(1.0, refresh))
        while time.monotonic() < watched.needed_until:
            time.sleep(min(0.1, refresh))
        return end
    finally:
        with watched.lock:  # a page that is being rendered is still sent
            server.shutdown()
        server.server_close()


class WatchedRun:
    """A run, its page, and how far it is. The page is rendered again when the run has new results."""

    def __init__(self, path: Path, refresh: float = 3.0) -> None:
        self.path, self.refresh = path, refresh
        self.needed_until = -math.inf  # when open pages would have asked again
        self.lock = threading.Lock()
        self._idle = 0  # looks in a row that found no process
        self._version = ""
        self._run = read_run(path)

    @property
    def finished(self) -> bool:
        """Whether the run has a summary."""
        return (self.path / "summary.json").exists()

    def check_end(self) -> End | None:
        """Return whether the run has ended; call this regularly."""
        if self.finished:
            return "finished"
        self._idle = 0 if at_work(self._heartbeat) else self._idle + 1
        return "stopped" if self._stopped else None

    @property
    def _stopped(self) -> bool:
        return self._idle >= _LOOKS and not self.finished

    @property
    def _heartbeat(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, Damaged):
            return read_object(read_regular(self.path / _HEARTBEAT))
        return {}

    def _update(self) -> dict[str, Any]:
        """Read the run again if its results have changed, and return its progress."""
        files = [self.path / name for name in _RESULTS]
        found = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
        version = hashlib.sha256(json.dumps([found, self._stopped]).encode()).hexdigest()[:16]
        if version != self._version:
            self._run, self._version = read_run(self.path), version
        return progress(self._run, self._heartbeat, self._stopped)

    def page(self) -> bytes:
        """Return the page. While the run is running, it asks for news."""
        with self.lock:
            facts, ended = self._update(), self._stopped or self.finished
            self.needed_until = time.monotonic() + 2 * self.refresh + (0 if ended else _LOADING)
            live = {"version": self._version, "refresh": "" if ended else f"{self.refresh:g}"}
            return render_report(Report([self._run]), progress=facts, live=live).encode("utf-8", "replace")

    def news(self) -> bytes:
        """Return the version of the results and the progress as JSON."""
        with self.lock:
            self.needed_until = time.monotonic() + 2 * self.refresh
            html = render_part("progress", self._update())
            return json.dumps({"version": self._version, "progress": html}).encode()


# -- progress ----------------------------------------------------------------------------------------------------------


def at_work(heartbeat: dict[str, Any]) -> bool:
    """Return whether the process that wrote a progress.json is alive. On another machine, its last news decide.

    A process of the same number that started at another time is another one.
    """
    pid = heartbeat.get("pid")
    if not isinstance(pid, int) or pid < 1:
        return False
    if heartbeat.get("host") != socket.gethostname() or os.name == "nt":  # on Windows, os.kill ends a process
        return abs(time.time() - number(heartbeat.get("time"))) < _SILENCE
    if (started := process_start(pid)) is not None:
        return started == heartbeat.get("started")
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        pass
    return True


def progress(run: Run, heartbeat: dict[str, Any] | None = None, stopped: bool = False) -> dict[str, Any]:
    """Return how far a run is, for the template: its state, a bar and facts by name.

    `heartbeat` is its progress.json, which describes the current session.
    """
    ended = run.finished or stopped
    # A stopped run resumes from its checkpoint, so its last heartbeat no longer counts.
    heartbeat = {} if heartbeat is None or ended else heartbeat
    done, planned = len(run.sessions), run.planned_sessions
    last = run.sessions[-1] if run.sessions else {}
    spent = [number(line.get("training_seconds")) + number(line.get("selection_seconds")) for line in run.sessions]
    spent = [seconds for seconds in spent if not math.isnan(seconds)]
    left = number(heartbeat.get("seconds_left"))
    if math.isnan(left) and planned is not None and spent:
        # Sessions grow with the buffer, so the last ones predict best.
        left = max(0, planned - done) * sum(spent[-3:]) / len(spent[-3:])
    facts = {"Sessions": run.progress}
    session, update, updates = (number(heartbeat.get(name)) for name in ("session", "update", "updates"))
    if session > done:
        facts[f"Updates of session {session:.0f}"] = f"{update:.0f} of {updates:.0f}"
        spent.append(max(0.0, number(heartbeat.get("seconds"))))
    facts |= {
        "Accuracy before rehearsal": _text(last.get("accuracy_before_rehearsal"), " %"),
        "Accuracy after rehearsal": _text(last.get("accuracy"), " %"),
        "Loss": _text(heartbeat.get("loss") if session > done else last.get("loss"), "", 3),
        "Time spent": duration(sum(spent)),
        "Time left (estimate)": NONE if ended or math.isnan(left) else duration(left),
    }
    stopped_text = "Stopped; run the same command again to resume." if ended else "Running; this page follows it."
    state = "Finished." if run.finished else stopped_text
    bar = {"done": done, "total": planned or max(1, done), "unit": "sessions"}
    if (total := number(heartbeat.get("total"))) > 0:  # updates of all sessions are more precise
        bar = {"done": f"{number(heartbeat.get('done')):.0f}", "total": f"{total:.0f}", "unit": "updates"}
    return {"state": state, "facts": facts, **bar}


def duration(seconds: float) -> str:
    """Return a duration as text, such as "5 s", "1 min 15 s" or "2 h 1 min"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _text(value: Any, unit: str, digits: int = 2) -> str:
    found = number(value)
    return NONE if math.isnan(found) else f"{found:.{digits}f}{unit}"


def _running(path: Path) -> Path:
    """Return the folder of the run to watch."""
    if not path.is_dir():
        raise GraspError(f"there is no folder {path}")
    if (path / "config.toml").exists():
        return path
    found = [file.parent for file in path.rglob("config.toml") if not (file.parent / "summary.json").exists()]
    if not found:
        raise GraspError(f"there is no unfinished run in {path}; give the folder of a run, which holds config.toml")
    files = [folder / name for folder in found for name in (*_RESULTS, _HEARTBEAT)]
    return max((file for file in files if file.exists()), key=lambda file: file.stat().st_mtime).parent


# -- server ------------------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    """Serves a bounded number of connections at a time, and ends those whose requests do not arrive."""

    daemon_threads = True

    def __init__(self, *where: Any) -> None:
        self._waiting: dict[socket.socket, float] = {}  # until when each connection may wait; threads change it
        super().__init__(*where)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._waiting) >= _CONNECTIONS:
            self.shutdown_request(request)
            return
        self._waiting[request] = time.monotonic() + _PATIENCE
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._waiting.pop(request, None)
        super().shutdown_request(request)

    def arrived(self, request: socket.socket) -> None:
        """Note that the whole request is there: making the answer may take its time."""
        self._waiting[request] = math.inf

    def service_actions(self) -> None:  # called all the time while serving
        for request, until in [*self._waiting.items()]:
            if time.monotonic() > until:
                with contextlib.suppress(OSError):  # its thread then ends by itself
                    request.shutdown(socket.SHUT_RDWR)


def _handler(watched: WatchedRun) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET of the page and of its news, and nothing else."""

        timeout = _PATIENCE
        server: _Server

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError, TimeoutError):  # a browser may leave at any time
                super().handle()

        def do_GET(self) -> None:
            self.server.arrived(self.connection)
            _, port, *_ = self.connection.getsockname()
            if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
                self.send_error(HTTPStatus.FORBIDDEN)  # another site's name for this machine
            elif self.path == "/":
                self._send(watched.page(), "text/html; charset=utf-8")
            elif self.path == "/progress.json":
                self._send(watched.news(), "application/json")
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
            """Log no line per request."""

    return Handler
