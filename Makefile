# Every target makes the environment that it needs; nothing but Python 3.11 and make has to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INPUT ?=
KEEP ?=
SEEDS ?= 50
SCENARIOS ?=
SECONDS_EACH ?= 60
DISK ?= dir
NETWORK ?= none

.PHONY: demo test lint types layers sim chaos chaos-selftest clean lock format

.venv: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(STAMP)

demo: $(STAMP)  ## the main job on real input: produce, kill a leader, read back, check
	$(BIN)/python -m loadtest.demo $(if $(INPUT),--input $(INPUT)) $(if $(KEEP),--keep)

test: $(STAMP)  ## unit, property, script, simulation and integration tests
	$(BIN)/python -m pytest -n 2 --dist loadfile tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

chaos: SEEDS = 1
chaos: $(STAMP)  ## the chaos suite: SCENARIOS=a,b SEEDS=1,2,3 SECONDS_EACH=60; as root DISK=loop NETWORK=netns
	$(BIN)/python -m tests.chaos --scenario $(or $(SCENARIOS),all) --seconds $(SECONDS_EACH) --seeds $(SEEDS) --disk $(DISK) --network $(NETWORK) $(if $(IDEMPOTENT),--idempotent)

chaos-selftest: $(STAMP)  ## the chaos suite against a stand-in cluster with known bugs; needs root
	$(BIN)/python -m tests.chaos.selftest

sim: $(STAMP)  ## the Raft core, then whole nodes, on virtual time: SEEDS=n; a failure says how to replay it
	$(BIN)/python -m tests.sim.raft --seeds 0:$(SEEDS)
	$(BIN)/python -m tests.sim.nodes --count $(SEEDS)

lock:  ## write requirements.lock anew from the newest versions that pyproject.toml allows
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[node,spark,loadtest,demo,dev]'
	{ echo '# Exact versions of everything that the environment holds; `make lock` writes it anew.'; \
	  build/lock/bin/python -m pip freeze --disable-pip-version-check --exclude milena; } > requirements.lock
	rm -rf build/lock

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache chaos-runs demo-data
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
