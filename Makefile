# Each command sets up everything on a fresh machine with Python 3.11 or later; a second run installs nothing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all check browser lint clean

demo: .venv/installed
	$(BIN)/graspcl demo

# Two tests at a time, with one thread each: threads that share cores wait for each other.
TESTS := OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: .venv/installed browser lint
	$(TESTS) -n 2 --dist loadgroup --durations=25

# Everything that trains nothing: the quick look before a commit.
check: .venv/installed lint
	$(TESTS) -n 2 --dist loadgroup tests/buffer tests/codec tests/metric tests/stream tests/data \
	    tests/policy/test_drawing.py tests/policy/test_tree.py tests/policy/test_grasp_order.py \
	    tests/test_design.py tests/test_checks.py tests/experiment/test_settings.py

# Slow tests measure, so they run one after the other. Some of them need Ray.
test-all: test .venv/installed-ray
	$(BIN)/python -m pytest -m slow

# Pages are tested in Chromium. Where apt may install it, this does; elsewhere those tests are skipped.
browser:
	@command -v chromedriver > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
	    && (apt-get -qq update; DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq install -y --no-install-recommends \
	        chromium chromium-driver fonts-dejavu-core) > /dev/null 2>&1; } \
	    || echo "no Chromium here (apt: chromium, chromium-driver): tests of pages are skipped"

lint: .venv/installed
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.venv/installed-ray: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	touch $@

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
