"""The program in this process: what a user types, without loading torch again for every command."""

import re
import signal

import pytest

from graspcl.cli import main
from graspcl.policy import policies


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def graspcl(tmp_path, cache, capsys, monkeypatch):
    """Runs a command in an empty folder, in a terminal of 80 columns, and returns what it prints.

    Tables must fit the terminal, no mistake may show a traceback, and the process keeps its own handler of SIGTERM.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("GRASPCL_CACHE", str(cache))
    policies.names()
    for table in ("_parts", "_declared"):  # what a plugin registers is forgotten after the test
        monkeypatch.setattr(policies, table, dict(getattr(policies, table)))

    def call(*arguments, code=0):
        ended, handler = 0, signal.getsignal(signal.SIGTERM)
        try:
            main([*map(str, arguments)])
        except SystemExit as end:
            ended = end.code or 0
        done = capsys.readouterr()
        assert signal.getsignal(signal.SIGTERM) == handler
        assert ended == code, done.out + done.err
        assert "Traceback" not in done.out + done.err
        tables = [line for line in done.out.splitlines() if re.search("[─│] ", line)]
        assert all(len(line) <= 80 for line in tables)
        return done.out + done.err

    return call
