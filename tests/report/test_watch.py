"""The page of a running run: served, followed, and ended with the run."""

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from browser import DRAWN
from making import finish, make_run

from graspcl.cli.report import watch as command
from graspcl.errors import GraspError
from graspcl.machine import process_start
from graspcl.report import read_run
from graspcl.report.watch import WatchedRun, at_work, duration, progress, watch

pytest.importorskip("plotly", reason="plotly is not installed")


class Watched:
    """A server in a thread."""

    def __init__(self, folder, refresh=0.2):
        told = threading.Event()
        self.address, self.end = "", None

        def tell(address):
            self.address = address
            told.set()

        def serve():
            self.end = watch(folder, tell, refresh=refresh)

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        assert told.wait(10)
        self.host = self.address.removeprefix("http://").rstrip("/")

    def news(self):
        """What an open page asks for."""
        status, body = self.ask("/progress.json")
        assert status == 200
        return json.loads(body)

    def join(self):
        """Wait for its end."""
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.end

    def ask(self, path="/", method="GET", **headers):
        connection = http.client.HTTPConnection(self.host, timeout=10)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body


def beat(folder, pid=None, **facts):
    """The progress.json of a process, by default this one."""
    pid = pid or os.getpid()
    known = {"pid": pid, "started": process_start(pid), "host": socket.gethostname(), "time": time.time()}
    (folder / "progress.json").write_text(json.dumps({**known, **facts}))


def dead():
    """The number of a process that is no more."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture
def half(tmp_path):
    folder = make_run(tmp_path / "runs" / "half", sessions=4, done=2)
    beat(folder)
    return folder


def add_session(folder):
    """One more line."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    line = json.loads(lines[-1])
    line |= {"session": line["session"] + 1, "loss": 0.125}
    (folder / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(line), ""]))


def test_progress_has_sessions_accuracy_loss_and_time_left(half):
    facts = progress(read_run(half))["facts"]
    assert list(facts.values()) == ["2 of 4", "40.00 %", "52.00 %", "1.500", "5 s", "5 s"]  # 2.5 s per session


def test_progress_shows_the_current_session(tmp_path):
    folder = make_run(tmp_path / "begun", sessions=2, done=0)
    now = {"session": 1, "update": 30, "updates": 600, "loss": 0.4119, "seconds": 61.0, "seconds_left": 75.2}
    found = progress(read_run(folder), {**now, "done": 30, "total": 1400})
    assert found["facts"]["Updates of session 1"] == "30 of 600"
    assert {"0 of 2", "0.412", "1 min 1 s", "1 min 15 s"} < set(found["facts"].values())
    assert (found["done"], found["total"]) == ("30", "1400")
    assert found["state"].startswith("Running")
    stopped = progress(read_run(folder), now, stopped=True)  # it resumes from a checkpoint, wherever that is
    assert stopped["state"] == "Stopped; run the same command again to resume."
    assert "30 of 600" not in stopped["facts"].values()


def test_a_recorded_session_is_not_the_current_one(half):
    facts = progress(read_run(half), {"session": 2, "update": 5, "updates": 5, "loss": 9.0, "seconds": 2.5})["facts"]
    assert facts["Loss"] == "1.500" and facts["Time spent"] == "5 s" and "Updates of session 2" not in facts


def test_only_the_page_and_its_news_are_served_and_only_to_this_machine(half):
    server = Watched(half.parent)  # the run below it that is running
    assert server.address.startswith("http://127.0.0.1:")
    status, page = server.ask()
    assert status == 200 and b"Progress" in page and b"connect-src 'self'" in page
    version = server.news()["version"]
    assert f'data-version="{version}"'.encode() in page
    for path in ("/config.toml", "/../config.toml", "/progress.json?x", "/%2e%2e/"):
        assert server.ask(path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "HEAD"):
        assert server.ask(method=method)[0] == 501
    assert server.ask(Host="evil.example")[0] == 403
    add_session(half)
    news = server.news()
    assert "3 of 4" in news["progress"] and news["version"] != version
    finish(half)
    assert "Finished." in server.news()["progress"]
    assert server.join() == "finished"
    with pytest.raises(OSError):
        urllib.request.urlopen(server.address, timeout=2)


def test_it_ends_with_the_run_though_nobody_looks(half):
    server = Watched(half)
    finish(half)
    assert server.join() == "finished"


def test_a_process_is_at_work_if_it_lives_or_has_just_said_so():
    here = {"pid": os.getpid(), "started": process_start(os.getpid()), "host": socket.gethostname(), "time": 0.0}
    assert at_work(here) and not at_work({**here, "pid": dead()})
    assert not any(map(at_work, ({}, {**here, "pid": None}, {**here, "pid": -1}, {**here, "pid": 10**30})))
    elsewhere = {**here, "host": "elsewhere", "pid": dead()}
    assert at_work({**elsewhere, "time": time.time() - 30})
    assert not at_work({**elsewhere, "time": time.time() - 90}) and not at_work({**elsewhere, "time": None})
    assert not at_work({**elsewhere, "time": time.time() + 1e6})


@pytest.mark.skipif(process_start(os.getpid()) is None, reason="the system does not tell when a process started")
def test_a_foreign_process_of_the_same_number_is_not_at_work(half):
    here = {"pid": os.getpid(), "started": process_start(os.getpid()), "host": socket.gethostname()}
    assert at_work(here) and not at_work({**here, "started": "1"}) and not at_work({**here, "pid": 1})
    beat(half, started=None)
    assert [WatchedRun(half).check_end() for _ in range(3)] == [None] * 3  # each a first look
    run = WatchedRun(half)
    assert [run.check_end() for _ in range(3)] == [None, None, "stopped"]


def test_more_connections_than_the_limit_are_refused(half, monkeypatch):
    monkeypatch.setattr("graspcl.report.watch._CONNECTIONS", 1)
    server = Watched(half)
    host, _, port = server.host.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=0.5) as first,
        socket.create_connection((host, int(port)), timeout=5) as second,
    ):
        assert second.recv(1) == b""
        with pytest.raises(TimeoutError):  # still waited for
            first.recv(1)
    finish(half)
    server.join()


def test_slow_connections_are_ended_and_many_are_refused(half, monkeypatch):
    monkeypatch.setattr("graspcl.report.watch._PATIENCE", 0.5)
    monkeypatch.setattr("graspcl.report.watch._CONNECTIONS", 3)
    server = Watched(half)
    host, _, port = server.host.rpartition(":")
    slow = [socket.create_connection((host, int(port)), timeout=20) for _ in range(6)]
    for connection in slow[:3]:
        connection.sendall(b"GET / HTTP/1.1\r\n")  # and never the rest
    assert [connection.recv(1) for connection in slow] == [b""] * 6  # all of them are closed
    for connection in slow:
        connection.close()
    with socket.create_connection((host, int(port)), timeout=0.1) as drip:
        for _ in range(200):  # a byte each 0.1 s: never silent, never complete
            try:
                drip.sendall(b"x")
                if drip.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the connection is still open after 20 s")
    assert server.ask()[0] == 200
    finish(half)
    server.ask()
    server.join()


@pytest.mark.parametrize("how", ["killed", "given up"])
def test_it_ends_with_a_run_that_is_stopped(half, how):
    server = Watched(half)
    server.ask()
    assert "Running" in server.news()["progress"]
    if how == "killed":
        beat(half, pid=dead())
    else:
        (half / "progress.json").unlink()
    deadline, text = time.monotonic() + 60, ""
    while "Stopped; run the same command again to resume." not in text and time.monotonic() < deadline:
        text = server.news()["progress"]
    assert "Stopped" in text
    assert b'data-refresh=""' in server.ask()[1]  # the last page asks for nothing more
    assert server.join() == "stopped"


def test_a_moment_without_a_process_is_no_stop(half):
    run = WatchedRun(half)
    (half / "progress.json").unlink()  # as just before the summary is written
    assert [run.check_end(), run.check_end()] == [None, None]
    beat(half)
    assert run.check_end() is None
    (half / "progress.json").unlink()
    assert [run.check_end(), run.check_end(), run.check_end()] == [None, None, "stopped"]
    finish(half)
    assert run.check_end() == "finished"


def test_the_terminal_says_how_it_ended(half, capsys):
    beat(half, pid=dead())  # stopped before anybody watched
    command(half, refresh=0.1)
    assert capsys.readouterr().out.endswith("the run has stopped; run the same command again to resume\n")


def test_a_browser_that_goes_leaves_no_traceback(half, capsys):
    server = Watched(half)
    host, _, port = server.host.rpartition(":")
    for read in (0, 1):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode())
            connection.recv(read)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
    for _ in range(3):
        assert server.ask()[0] == 200
    finish(half)
    server.ask()  # the last page, which asks for nothing more
    server.join()
    assert capsys.readouterr().err == ""


def test_every_open_page_hears_of_the_end(half):
    server = Watched(half, refresh=0.3)
    server.ask()
    finish(half)
    for _ in range(2):  # two tabs, one after the other
        assert "Finished." in server.news()["progress"]
        assert b"Finished." in server.ask()[1]
    assert server.join() == "finished"


def test_the_version_changes_with_the_results_alone(half):
    server = Watched(half)
    first = server.news()
    beat(half, session=3, update=1, updates=5)
    second = server.news()
    assert second["version"] == first["version"] and second["progress"] != first["progress"]
    add_session(half)
    assert server.news()["version"] != first["version"]
    finish(half)
    server.join()


def test_mistakes_are_answered(tmp_path):
    done = make_run(tmp_path / "done")
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (done, "is finished; show it with: graspcl report"),
        (tmp_path / "empty", "no unfinished run"),
        (tmp_path / "nowhere", "there is no folder"),
    ):
        with pytest.raises(GraspError, match=message):
            watch(folder, print)


def test_a_port_that_is_taken_is_named(half):
    server = Watched(half)
    port = int(server.host.rpartition(":")[2])
    with pytest.raises(GraspError, match=f"port {port} cannot be used"):
        watch(half, print, port=port)
    finish(half)
    server.join()


def test_durations_are_for_people():
    assert [duration(seconds) for seconds in (0, 59.4, 60, 3600)] == ["0 s", "59 s", "1 min 0 s", "1 h 0 min"]


# -- in a browser ------------------------------------------------------------------------------------------------------

PROGRESS = "document.querySelector('[data-part=progress]').innerText"


def test_the_page_follows_the_run_to_its_end(half, chromium):
    server = Watched(half, refresh=1.0)
    chromium.look()
    chromium.open(server.address)
    assert "2 of 4" in chromium.run(f"return {PROGRESS}")
    beat(half, session=3, update=1, updates=5)
    chromium.run("window.same = true")
    chromium.until(f"{PROGRESS}.includes('1 of 5')")
    assert chromium.run("return window.same")  # progress alone does not load the page again
    add_session(half)
    chromium.until(f"{PROGRESS}.includes('3 of 4')")
    finish(half)
    chromium.until(f"{PROGRESS}.includes('Finished') && {DRAWN}")
    assert chromium.run("return document.querySelectorAll('figure .main-svg').length") > 8
    assert server.join() == "finished"
    assert [line for line in chromium.complaints() if "favicon" not in line] == []
    assert {a.rpartition("/")[2] for a in chromium.requests() if a.startswith("http")} == {"", "progress.json"}


CHOICES = """
return {
  open: [...document.querySelectorAll('details')].map((one) => one.open),
  sorted: [...document.querySelectorAll('th[aria-sort]')].map((one) => one.getAttribute('aria-sort')),
  hidden: document.querySelector('#e0-learning-all .chart').data.map((trace) => trace.visible ?? true),
  focus: document.activeElement.innerText,
  scroll: scrollY,
};
"""


def test_the_reader_keeps_choices_when_the_page_is_loaded_again(half, chromium):
    server = Watched(half, refresh=1.0)
    chromium.look(height=500)
    chromium.open(server.address)
    chromium.run(
        "const box = document.querySelector('details.card'); box.open = true;"
        "const heads = box.querySelectorAll('th[data-place] button'); heads[0].click(); heads[0].click();"
        "heads[0].focus({preventScroll: true}); window.same = true;"
        "Plotly.restyle(document.querySelector('#e0-learning-all .chart'), {visible: 'legendonly'}, [0]);"
        "scrollTo(0, 300)"
    )
    before = chromium.run(CHOICES)
    assert any(before["open"]) and before["sorted"] == ["descending"] and before["focus"] and before["scroll"] == 300
    assert "legendonly" in before["hidden"]
    config = (half / "config.toml").read_text()
    (half / "config.toml").write_text(f"zebra = 7\n{config}")  # the sorted table itself changes
    chromium.until(f"!window.same && {DRAWN} && scrollY === 300")
    assert chromium.run(CHOICES) == before
    names = chromium.run(
        "return [...document.querySelector('details.card').querySelectorAll('tbody tr')].map(r => r.cells[0].innerText)"
    )
    assert names == sorted(names, reverse=True) and "zebra" in names
    finish(half)  # ends the server


def test_new_figures_appear(tmp_path, chromium):
    folder = make_run(tmp_path / "begun", sessions=2, done=0)
    (folder / "predictions.npz").rename(tmp_path / "later.npz")
    beat(folder)
    server = Watched(folder, refresh=1.0)
    chromium.look()
    chromium.open(server.address)
    figures = "document.querySelectorAll('figure .main-svg').length"
    before = chromium.run(f"return {figures}")
    (tmp_path / "later.npz").rename(folder / "predictions.npz")
    chromium.until(f"{figures} > {before}")
    finish(folder)  # ends the server
