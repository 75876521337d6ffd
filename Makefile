# Set-up, demo and checks. Needs make, Python 3.11 to 3.13 and the package index; nothing else.
#
#   make demo      set up, then photos, limits and a burst of load on a real cluster; see demo-report/
#   make test      set up, then the tests for every change: units, simulations, one real cluster
#   make test-all  set up, then every test: long ones, too, and those with a cluster of their own
#   make simtest   seeds of the fault simulation: make simtest SEEDS=1000 (see docs/simtest.md)
#   make lint      style, types and import contracts
#   make docs      write the docs' generated tables again
#   make site      write the manual as a site, with a search, into build/site
#   make bench     the front door's throughput beside its peers and its limit
#   make lock      write the locked requirements again (needs uv; UPGRADE=1 takes newer versions)
#   make clean     remove what the others made
#
# Another interpreter: make PYTHON=python3.12 test. More arguments: make test ARGS='-k registry'.

PYTHON ?= python3
ARGS ?=
SEEDS ?= 300
VENV := .venv
BENCH_HOME ?= build/bench
BIN := $(VENV)/bin
UV ?= $(firstword $(wildcard $(BIN)/uv) uv)

CREATED := $(VENV)/.created
DEMO_READY := $(VENV)/.demo-ready
TEST_READY := $(VENV)/.test-ready

PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL_LOCKED := $(PIP) install --quiet --require-hashes --only-binary :all: --requirement
INSTALL_MODELLESS := $(PIP) install --quiet --no-build-isolation --no-deps --editable .
LOCK_ONLY := $(UV) --no-config pip compile --quiet --universal --python-version 3.11 \
	--fork-strategy fewest --generate-hashes --only-binary :all: --no-emit-index-url \
	--custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
LOCK := $(LOCK_ONLY) pyproject.toml requirements/build.in

unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help demo test test-all simtest lint style types contracts docs site bench lock clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: $(DEMO_READY)
	$(BIN)/modelless demo $(ARGS)

# A cluster wants the cores to itself: tests/live runs after all the others, which share them.
PARALLEL := --numprocesses auto --dist loadfile --ignore tests/live
# Numerical libraries start a thread for each core; those of two processes would wait for each other.
ONE_THREAD := env OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

test: $(TEST_READY)
ifeq ($(ARGS),)
	$(ONE_THREAD) $(BIN)/python -m pytest -m 'not slow' $(PARALLEL)
	$(BIN)/python -m pytest -m 'not slow' tests/live
else
	$(BIN)/python -m pytest $(ARGS)
endif

test-all: $(TEST_READY)
	$(ONE_THREAD) $(BIN)/python -m pytest --hypothesis-profile long $(PARALLEL)
	$(BIN)/python -m pytest tests/live

simtest: $(TEST_READY)
	$(BIN)/python -m tests.simtest --seeds $(SEEDS) $(ARGS)

lint: style types contracts

style: $(TEST_READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(TEST_READY)
	$(BIN)/python -m mypy -p modelless

contracts: $(TEST_READY)
	$(BIN)/lint-imports --no-logo

docs: $(TEST_READY)
	$(BIN)/python docs/generate.py

site: $(CREATED) requirements/docs.txt
	$(INSTALL_LOCKED) requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: $(TEST_READY)
	$(BIN)/modelless --home $(BENCH_HOME) zoo add imagenet
	$(BIN)/modelless --home $(BENCH_HOME) profile imagenet
	$(BIN)/python benchmarks/serving/front_door.py --home $(BENCH_HOME) --rounds 5 \
		--connections 1,16,64 --chart $(BENCH_HOME)/front-door.png $(ARGS)

lock:
	@command -v $(UV) > /dev/null || { echo "make lock needs uv: 'make test' installs one" >&2; exit 1; }
	$(LOCK) --extra cpu --extra openvino --extra making --extra sklearn --extra parquet \
		--extra demo --extra postgresql --extra tune --extra dev --output-file requirements/test.txt > /dev/null
	$(LOCK_ONLY) --no-deps requirements/zoo.in --output-file requirements/zoo.txt > /dev/null
	$(LOCK_ONLY) requirements/docs.in --constraint requirements/test.txt \
		--output-file requirements/docs.txt > /dev/null
	$(LOCK) --extra cpu --extra demo --constraint requirements/test.txt \
		--output-file requirements/demo.txt > /dev/null
	$(LOCK) --extra cpu --extra demo --extra postgresql --constraint requirements/test.txt \
		--output-file requirements/container.txt > /dev/null
	$(LOCK) requirements/gpu.in --extra demo --extra postgresql \
		--constraint requirements/test.txt --output-file requirements/container-gpu.txt > /dev/null

clean:
	rm -rf $(VENV) build dist demo-report src/modelless.egg-info \
		.mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find benchmarks controller docs policies profiler src tests variants \
		-name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@command -v $(PYTHON) > /dev/null || { \
		echo "no '$(PYTHON)' on this machine; name an interpreter: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "modelless needs Python 3.11, 3.12 or 3.13, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
			"name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { \
		echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

# test.txt holds all that demo.txt holds, in the same versions: one environment serves both.
$(DEMO_READY): $(CREATED) requirements/demo.txt pyproject.toml
	$(INSTALL_LOCKED) requirements/demo.txt
	$(INSTALL_MODELLESS)
	@touch $@

$(TEST_READY): $(CREATED) requirements/test.txt requirements/zoo.txt requirements/demo.txt pyproject.toml
	$(INSTALL_LOCKED) requirements/test.txt
	$(INSTALL_LOCKED) requirements/zoo.txt --no-deps
	$(INSTALL_MODELLESS)
	@touch $(DEMO_READY) $@
