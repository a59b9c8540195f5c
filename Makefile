# Both commands set everything up on a fresh machine with Python 3.11 or later; a second run installs nothing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all lint clean

demo: .venv/installed
	$(BIN)/graspcl demo

test: .venv/installed lint
	$(BIN)/python -m pytest

test-all: .venv/installed lint
	$(BIN)/python -m pytest -m "slow or not slow"

lint: .venv/installed
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
