# Every command of the project, one target each; CI runs `make test` and nothing else.

PYTHON ?= python3
BIN    := .venv/bin
STAMP  := .venv/.installed
SPARK  := .venv/.spark
SITE   := .venv/.site
WARM   := .venv/.warm
PYTEST := $(BIN)/python -m pytest
MYPY   := $(BIN)/mypy src tests $(wildcard benchmarks/*.py benchmarks/*/*.py examples/*.py demos/*.py demos/*/*.py tools/*.py)
# One more than the two cores it is made for: a test waits a quarter of its time, for disks and servers.
JOBS   ?= 3

# Images of Python often forbid bytecode, which has no place in a layer. Here each of the hundreds of
# processes that tests start would compile Arrow, gRPC and all of the package again.
export PYTHONDONTWRITEBYTECODE :=

BENCHES := cli log publish consume schedule latency streams spark burrow dispatch lease security quota cluster topics failover hot_stream processes partitions console

.DEFAULT_GOAL := help
.NOTPARALLEL:
# Every target with a help text; none of them is a file.
.PHONY: $(shell awk -F: '/^[a-z-]+:.*## / {print $$1}' $(MAKEFILE_LIST)) $(BENCHES:%=bench-%)

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SPARK)  ## Create .venv from requirements.lock (does nothing when it is up to date)

run: $(STAMP)  ## Run a node on the default ports, its data in ./waterclock-data
	@$(BIN)/waterclock up

demo: $(STAMP)  ## A node at work: schedule, fire, retry, redrive, kill -9, replay, failover; nothing lost
	@$(BIN)/python -m demos.node

demo-dispatch: $(STAMP)  ## Dispatchers and workers on a Redis, some killed: nothing lost, nothing twice
	@$(BIN)/python -m demos.dispatch --chaos

# Types and the site take one core each for a while, so the tests begin beside them.
test: style $(SPARK) $(SITE)  ## Everything CI runs: style, types, the docs site and all tests
	@$(MAKE) --no-print-directory types >.venv/types.log 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory docs >.venv/docs.log 2>&1 & docs=$$!; \
	$(MAKE) --no-print-directory unit; failed=$$?; \
	wait $$types || failed=1; wait $$docs || failed=1; \
	cat .venv/types.log .venv/docs.log; exit $$failed

# What the other tests need is said in tests/kit/needs.py; `make unit NEEDS=redis` runs those alone.
check: NEEDS := not (spark or kafka or redis or serf or etcd or databases or browser or deploy or chaos or plants or benches)
# A fifth of the examples and histories: make sim has all of them, make test a third.
check: PROFILE := --hypothesis-profile=quick
check: export WATERCLOCK_QUICK := 1
check: export WATERCLOCK_HISTORIES := 40
check: export WATERCLOCK_DELIVERY_HISTORIES := 8
check: export WATERCLOCK_TIMER_HISTORIES := 40
check: export WATERCLOCK_HUNT := 32
check: style $(SPARK)  ## For daily work: style, types and the tests that need no server (5 minutes)
	@$(MYPY) >$(LOG) 2>&1 & types=$$!; \
	$(PYTEST) -q -n $(JOBS) -m "$(NEEDS)" $(PROFILE); failed=$$?; \
	wait $$types || failed=1; cat $(LOG); exit $$failed

style: $(STAMP)  ## Lint, formatting and spelling
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/codespell

types: $(SPARK)  ## Static types (mypy, strict)
	@$(MYPY)

unit: NEEDS := $(or $(NEEDS),not helm)
unit: $(WARM)  ## The tests alone; NEEDS= those with markers as in: make unit NEEDS=redis
	@$(PYTEST) -q -n $(JOBS) -m "$(NEEDS)" $(PROFILE) --durations=20 --durations-min=3

deploy-test: $(STAMP)  ## What make test leaves out of deploy/: the chart, by a Helm that is built first (minutes, once)
	@$(PYTEST) -q -m helm tests/deploy

stores-big: N := $(or $(N),1000000)
stores-big: $(STAMP)  ## Every store with N= messages in one stream, read page by page, and under nodes that come and go
	@WATERCLOCK_STORES_BIG=$(N) $(PYTEST) -q -s tests/stores/test_paging.py tests/stores/test_moving_owners.py

# Material warns of its own end of life in 2027; until then it is the one with an API reference that is done.
docs: $(SITE)  ## Build the docs site with the API reference into ./site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict >$(LOG) 2>&1 || { grep -v INFO $(LOG); exit 1; }
	@echo "The docs are at site/index.html"

console-shots: $(STAMP)  ## Take the pictures of the console for docs/console.md, in a browser without a screen
	@$(BIN)/python -m tools.console_shots
	@$(BIN)/python -m tools.console_story --pictures

console-story: $(STAMP)  ## From a node that begins to a message that is redriven, by mouse: first paint and time
	@$(BIN)/python -m tools.console_story

docs-run: $(SPARK)  ## Run every page and example twice from the wheel, also what starts Spark (some minutes)
	@WATERCLOCK_DOCS_SPARK=1 $(PYTEST) -q tests/docs

wheel: $(STAMP)  ## Build dist/waterclock-….whl, to install anywhere
	@$(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist

VERSION = $(shell $(BIN)/python -c 'import waterclock; print(waterclock.__version__)')

release: $(SPARK)  ## Check everything, build wheel and sdist into dist, tag the commit; it pushes nothing
	@test -z "$$(git status --porcelain)" || { echo "Commit first: a release is made of what is committed"; exit 1; }
	@grep -q '^## \[$(VERSION)\]' CHANGELOG.md || { echo "CHANGELOG.md has no section [$(VERSION)]"; exit 1; }
	@! git rev-parse --quiet --verify refs/tags/v$(VERSION) >/dev/null || { echo "v$(VERSION) is tagged already"; exit 1; }
	@CI=1 $(MAKE) --no-print-directory test
	@rm -rf dist && $(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	@git tag --annotate v$(VERSION) --message "Waterclock $(VERSION)"
	@echo "Tagged v$(VERSION), built dist/. To publish: git push origin v$(VERSION), and upload dist/"

# The seed is chosen here, not by Hypothesis, so that a failing run always names the way back to it.
sim: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
sim: N := $(or $(N),20000)
sim: $(SPARK)  ## Long random histories of storage and streams, N= how many, SEED= replays; all examples of the rest
	@echo "replay with: make sim N=$(N) SEED=$(SEED)"
	@WATERCLOCK_HISTORIES=$(N) WATERCLOCK_SEED=$(SEED) $(PYTEST) -q -n $(JOBS) \
		tests/storage/test_histories.py tests/storage/test_shared_histories.py -k no_history --hypothesis-profile=sim
	@WATERCLOCK_HISTORIES=$(N) WATERCLOCK_SEED=$(SEED) $(PYTEST) -q -n $(JOBS) \
		tests/streams/test_histories.py
	@WATERCLOCK_FULL=1 $(PYTEST) -q -n $(JOBS) -m explores \
		--hypothesis-profile=sim --hypothesis-seed=$(SEED)

hunt: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
hunt: N := $(or $(N),2000)
hunt: $(STAMP)  ## Whole nodes in histories of kills, pauses and clock steps; N= how many, SEED= the first
	@$(BIN)/python -m tests.simulation.hunt --seed $(SEED) --count $(N)

burrow-sim: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
burrow-sim: N := $(or $(N),2000)
burrow-sim: $(SPARK)  ## Groups of parallel consumers in stories of faults; N= how many, SEED= the first
	@$(BIN)/python -m tests.burrow.simulation --seed $(SEED) --count $(N)

burrow-chaos: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
burrow-chaos: N := $(or $(N),20)
burrow-chaos: $(STAMP)  ## Parallel consumers on a real Kafka, killed, paused, moved; N= rounds, SEED= chooses
	@$(BIN)/python -m tests.burrow.chaos --rounds $(N) --seed $(SEED)

burrow-copy: $(STAMP)  ## 100,000 messages copied exactly once on a real Kafka, under kills
	@$(BIN)/python -m tests.burrow.chaos.exactly_once

burrow-stuck: $(STAMP)  ## One stuck message, 100,000 finished behind it, and a kill: what is done again
	@$(BIN)/python -m tests.burrow.chaos.stuck

burrow-plants: $(STAMP)  ## The same with bugs planted in them: each must be found
	@$(BIN)/python -m tests.burrow.chaos --plants

dispatch-sim: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
dispatch-sim: N := $(or $(N),2000)
dispatch-sim: $(SPARK)  ## Dispatchers, workers and a Redis in stories of faults; N= how many, SEED= the first
	@$(BIN)/python -m tests.dispatch.simulation --seed $(SEED) --stories $(N)

dispatch-chaos: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
dispatch-chaos: N := $(or $(N),100)
dispatch-chaos: $(STAMP)  ## Real ones with a real Redis, killed, paused, cut off; N= rounds with each source, SEED= chooses
	@$(BIN)/python -m tests.dispatch.chaos --rounds $(N) --seed $(SEED) --source-kind stream
	@$(BIN)/python -m tests.dispatch.chaos --rounds $(N) --seed $(SEED) --source-kind pubsub

dispatch-plants: $(STAMP)  ## The same with bugs planted in them: each must be found
	@$(BIN)/python -m tests.dispatch.chaos --plants

# Those that are left out hold up, or look into, the node that clients are connected to, which is not
# the one that works here; `restarts_loses` has a port for one node, and here are two. A member that
# has left while its dead letters cannot be written is told of the stop later (`does_not_wait_for`).
# The suites of streams have their own: tests/cluster/test_streams_through.py.
THROUGH_NOT := singles_share or whose_caller_went or bytes_in_flight_are_refused or fetch_waits_for \
  or tells_who_it_is or tells_about_itself or too_much_waits or vanishes_leaves or beyond_its_batches \
  or answers_what_it_has_read or does_not_wait_for_dead_letters or restarts_loses_nothing
test-through: $(STAMP)  ## The suites of gRPC, HTTP and the client, asked of a node that leads nothing
	@WATERCLOCK_THROUGH=1 $(BIN)/python -m pytest -q -n 2 -k "not ($(THROUGH_NOT))" \
	  $(addprefix tests/server/test_,$(addsuffix .py,broker_api admin_api scheduler_api publish_stream \
	  subscribe_stream replay_stream write_registry rest_topics rest_messages rest_consumers \
	  rest_schedule rest_frames rest_events limits)) \
	  $(addprefix tests/client/test_,$(addsuffix .py,real_node blocking snapshots))

# Not: a limit in gRPC's own words; that a node has no link, as the suite has one to it.
NATIVE_NOT := refused_by_grpc or without_it_all_goes_by_grpc
test-native: $(STAMP)  ## The suites of gRPC and the client, asked by the native protocol
	@WATERCLOCK_NATIVE=1 $(BIN)/python -m pytest -q -n 2 -k "not ($(NATIVE_NOT))" \
	  $(addprefix tests/server/test_,$(addsuffix .py,broker_api admin_api scheduler_api publish_stream \
	  subscribe_stream replay_stream write_registry)) \
	  $(CLIENT_SUITES) tests/client/test_native_links.py

CLIENT_SUITES := $(addprefix tests/client/test_,$(addsuffix .py,real_node blocking snapshots failover \
  killed_node secured tracing))
test-grpc: $(STAMP)  ## The suites of the client, by gRPC alone
	@WATERCLOCK_CLIENT_BY_GRPC=1 $(BIN)/python -m pytest -q -n 2 $(CLIENT_SUITES)

cluster-sim: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
cluster-sim: N := $(or $(N),100)
# Of streams fewer: their clusters are of a hundred nodes. A scenario that is named is played N times.
cluster-sim: $(SPARK)  ## Simulated clusters, replicated topics and streams; N= how many, SEED= the first, SCENARIO= topics or one of streams
ifneq ($(SCENARIO),)
	@$(BIN)/python -m tests.cluster.simulation$(if $(filter topics,$(SCENARIO)),.topics, --scenario $(SCENARIO)) --seeds $(N) --seed $(SEED)
else
	@$(BIN)/python -m tests.cluster.simulation.topics --seeds $(N) --seed $(SEED)
	@$(BIN)/python -m tests.cluster.simulation --seeds $$((1 + $(N) / 1000)) --seed $(SEED)
	@$(BIN)/python -m tests.cluster.hot_streams.stories --seed $(SEED) --count $$((20 + $(N) / 10))
endif

cluster-plants: $(STAMP)  ## The same with bugs planted in them: each must be found
	@$(BIN)/python -m tests.cluster.simulation.topics --plants
	@$(BIN)/python -m tests.cluster.simulation --plants
	@$(BIN)/python -m tests.cluster.hot_streams.stories --plants

cluster-chaos: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
cluster-chaos: N := $(or $(N),28)
cluster-chaos: MINUTES := $(or $(MINUTES),10)
cluster-chaos: $(STAMP) $(SPARK)  ## Nodes in network namespaces, killed, paused, cut off, wiped: topics for MINUTES=, with a real etcd; N= rounds of streams; SEED= chooses (root)
	@echo "again with: make cluster-chaos MINUTES=$(MINUTES) N=$(N) SEED=$(SEED)"
	@GRPC_ENABLE_FORK_SUPPORT=0 $(BIN)/python -m tests.cluster.chaos.topics --minutes $(MINUTES) --seed $(SEED) --spark
	@$(BIN)/python -m tests.cluster.chaos --rounds $(N) --seed $(SEED)

cluster-chaos-plants: $(STAMP)  ## The same with bugs planted in the nodes: each must be found (root)
	@GRPC_ENABLE_FORK_SUPPORT=0 $(BIN)/python -m tests.cluster.chaos.topics --plants
	@$(BIN)/python -m tests.cluster.chaos --plants

# gRPC is told not to watch for forks: it would log each start of a node.
CRASH := GRPC_ENABLE_FORK_SUPPORT=0 $(BIN)/python -m tests.integration

crash: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
crash: N := $(or $(N),50)
crash: $(STAMP)  ## A node under load, killed N= times: what was lost, early, twice; SEED= chooses
	@echo "again with: make crash N=$(N) SEED=$(SEED)"
	@$(CRASH).crash_matrix --rounds $(N) --seed $(SEED)

plants: $(STAMP)  ## The same on nodes with bugs planted in them: each must be found
	@$(CRASH).planted

backup-chaos: SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
backup-chaos: N := $(or $(N),20)
backup-chaos: $(STAMP)  ## Backups of a node under load that is killed, restored elsewhere; N= rounds, SEED= the first
	@GRPC_ENABLE_FORK_SUPPORT=0 $(BIN)/python -m tests.backup.rounds --rounds $(N) --seed $(SEED)

backup-plants: $(STAMP)  ## The same with bugs planted in how the node is cut: each must be found
	@GRPC_ENABLE_FORK_SUPPORT=0 $(BIN)/python -m tests.backup.rounds --plants

fuzz: N := $(or $(N),300)
fuzz: $(STAMP)  ## Hostile requests to every method; N= how many to each
	@WATERCLOCK_FUZZ=$(N) $(PYTEST) -q $(wildcard tests/integration/test_hostile*.py) tests/server/test_openapi.py --hypothesis-profile=sim

cover: $(SPARK)  ## The tests with branch coverage
	@$(PYTEST) -q -n $(JOBS) --cov

bench-smoke: $(SPARK)  ## A tiny run of every benchmark, those that are too long for make test among them
	@WATERCLOCK_SMOKE_ALL=1 $(PYTEST) -q tests/benchmarks/test_smoke.py

record: $(SPARK)  ## Record every benchmark in RESULTS.md, on a machine with nothing else to do (hours)
	@$(BIN)/python -m benchmarks.record_all $(BENCHES)

bench: $(BENCHES:%=bench-%)  ## All benchmarks, or one: make bench-log

$(BENCHES:%=bench-%): bench-%: $(STAMP)
	@$(BIN)/python -m benchmarks.$*

bench-spark: $(SPARK)

proto: $(STAMP)  ## Generate the gRPC code from proto/
	@PATH=$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -I proto --python_out=src --grpc_python_out=src \
		--mypy_out=quiet:src --mypy_grpc_out=quiet:src $(wildcard proto/waterclock/v1/*.proto)

sync: $(STAMP)  ## Generate the blocking client from the asyncio one
	@$(BIN)/python -m tools.sync_client

# What an image has: stores, seeds, traces and the dispatcher; Spark and Kafka are used where jobs and consumers run.
IMAGE_EXTRAS := aws azure cassandra dns dynamodb gcp mongodb mysql otel postgres redis

lock: $(STAMP)  ## Pin the newest allowed dependencies in requirements.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --fork-strategy fewest --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --extra dev pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --fork-strategy fewest --python-version 3.11 --constraints requirements.lock \
		--generate-hashes --no-emit-index-url --no-header --group docs -o requirements-docs.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --fork-strategy fewest --python-version 3.11 --constraints requirements.lock \
		--generate-hashes --no-emit-index-url --no-header $(IMAGE_EXTRAS:%=--extra %) pyproject.toml -o requirements-node.lock

clean:  ## Remove what make made
	@rm -rf .venv build dist site .*_cache .hypothesis .coverage* htmlcov
	@find . -name __pycache__ -prune -exec rm -rf {} +

# uv installs the lock in two seconds where pip takes twenty, so pip fetches uv alone, by its hashes in the
# lock. The build backend comes from the lock too: nothing is downloaded that the lock does not name.
OLD     := Waterclock needs Python 3.11 or newer: install it, or name it as in: make PYTHON=python3.12
NO_VENV := $(PYTHON) cannot create a virtual environment: install its venv module (Debian: apt install python3-venv)
OFFLINE := The package registry cannot be reached: check the network or PIP_INDEX_URL and UV_DEFAULT_INDEX
LOG     := .venv/setup.log
pinned   = awk '/^$(1)==/ {on = 1} on {print} on && !/\\$$/ {exit}' requirements.lock
FAILED  := { grep -qiE 'connect|timed out|resolve host|dns error|unreachable' $(LOG) && echo "$(OFFLINE)" || cat $(LOG); exit 1; }

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "$(OLD)"; exit 1; }
	@echo "Setting up .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { echo "$(NO_VENV)"; exit 1; }
	@$(call pinned,uv) >.venv/uv.lock
	@awk '/^pyspark==/ {off = 1} !off {print} off && !/\\$$/ {off = 0}' requirements.lock >.venv/most.lock
	@$(BIN)/python -m pip install --retries 1 --no-deps --require-hashes -r .venv/uv.lock >$(LOG) 2>&1 || $(FAILED)
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes --no-deps -r .venv/most.lock >$(LOG) 2>&1 || $(FAILED)
	@$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation -e . >$(LOG) 2>&1 || $(FAILED)
	@touch $@

# Spark has no wheel and half a gigabyte: it is built by those who need it, not to run a node.
$(SPARK): $(STAMP)
	@echo "Building Spark for .venv (once: half a minute)"
	@$(call pinned,pyspark) >.venv/spark.lock
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes --no-deps --no-build-isolation -r .venv/spark.lock >$(LOG) 2>&1 || $(FAILED)
	@touch $@

# Each worker would compile every test, all of them at once: one process does it for them.
$(WARM): $(SPARK)
	@$(PYTEST) -q --collect-only >/dev/null 2>&1 || true
	@touch $@

$(SITE): $(STAMP) requirements-docs.lock
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes --no-deps -r requirements-docs.lock >$(LOG) 2>&1 || $(FAILED)
	@touch $@
