# Everything is made inside the project: .tools holds uv where PATH has none, .venv the rest.
# Needed beforehand: make and Python 3.11 or later, with its venv module.

PYTHON ?= python3
# A uv that is too old refuses this project (see required-version in pyproject.toml).
UV := $(shell uv tree --frozen --offline --depth 0 >/dev/null 2>&1 && echo uv || echo .tools/bin/uv)
RUN := $(UV) run --no-sync
# On two cores, as tests often wait. Each process has a server of its own; tests/support/grouping.py keeps some tests in one.
PARALLEL ?= -n 4
# Tests start hundreds of programs, each of which would compile all of its modules.
unexport PYTHONDONTWRITEBYTECODE
# For servers that differ only in the way to them: one file of each program, and those of connections that are shared or break.
PROGRAMS := $(patsubst %,tests/integration/test_%.py,admin blocking consumer manager many_callers producer producer_faults worker)
# What the tests of these look at stands above the calls, which go to several nodes in a Cluster.
ABOVE_CALLS := $(patsubst %,--ignore tests/integration/test_%.py,bad_input_cli completion event_loops first_day_api \
	first_day_cli first_day_worker from_rabbitmq handler_errors handler_tasks hooks interrupts json_logs questions \
	run_in terminals tracing tracing_faults)

.PHONY: help demo demo-http demo-outbox demo-spark test test-fast test-long test-lowest test-topologies bench bench-outbox bench-spark costs chaos simulate check docs pictures format dist clean
.DEFAULT_GOAL := help

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 17

demo: .venv/synced ## one day of real air traffic in 30 s; DEMO="--seconds 10" shortens it
	$(RUN) python -m demo $(DEMO)

demo-spark: .venv/synced ## the same day as a pipeline of Spark jobs, with a chart; needs Java 17
	$(RUN) python -m demo.spark $(DEMO)

demo-http: .venv/synced ## the same day by two HTTP gateways, with clients in Python, curl and Node, and a dashboard; one gateway is killed
	$(RUN) python -m demo.http $(DEMO)

demo-outbox: .venv/synced ## a shop on PostgreSQL whose relays are killed; each committed row is one message; needs Debian's postgresql
	PYTHONPATH=tests $(RUN) python -m demo.outbox $(DEMO)

test: .venv/synced ## run all tests but the longest; PYTEST="-k ack" narrows it
	$(RUN) pytest $(PARALLEL) $(PYTEST)

test-fast: .venv/synced ## run the unit, Lua and property tests, in less than a minute
	$(RUN) pytest $(PARALLEL) tests/unit tests/lua tests/property $(PYTEST)

test-long: .venv/synced ## run the others, of 3 s to 4 min: Spark, kills, whole pipelines, clean installations
	$(RUN) pytest $(PARALLEL) -m 'slow or long' $(PYTEST)

test-lowest: .venv/synced ## the same with the lowest versions that our distributions allow; LOWEST="pyspark==4.2.0" sets one
	$(UV) venv --quiet $(if $(LOWEST),--allow-existing,--clear) .venv-lowest
	$(UV) pip install --quiet --python .venv-lowest --resolution lowest-direct --group test --group bench \
		-e 'common[cli,embedded,metrics,otel]' -e 'producer[celery,cli,outbox,spark]' -e 'consumer[celery,cli,reload]' -e manager -e 'gateway[push,dashboard]' -e testing \
		$(LOWEST)
	PATH="$(CURDIR)/.venv-lowest/bin:$$PATH" pytest $(PARALLEL) $(PYTEST)

test-topologies: .venv/synced ## fail-over, the tests of the programs behind sentinels, those of all calls on a Cluster; needs redis-server
	LISA_TEST_SERVER=sentinel $(RUN) pytest $(PARALLEL) tests/topologies $(PROGRAMS) \
		-m 'topologies or server and not slow and not long' $(PYTEST)
	LISA_TEST_SERVER=cluster $(RUN) pytest $(PARALLEL) tests/integration $(ABOVE_CALLS) -m 'server and not slow and not long' $(PYTEST)

bench: .venv/synced ## Lisa against a yardstick, a ceiling and peers; ONLY=lag runs a part, BENCH="--rounds 3"
	PYTHONPATH=tests $(RUN) python -m benchmarks --only '$(ONLY)' $(BENCH)

costs: .venv/synced ## commands and bytes of each step, compared with benchmarks/costs.json; COSTS=--write keeps new ones
	PYTHONPATH=tests $(RUN) python -m benchmarks.costs $(COSTS)

bench-spark: .venv/synced ## rows per second from Spark, against the same bytes written by hand; needs Java 17
	PYTHONPATH=tests $(RUN) python -m benchmarks.spark $(BENCH)

bench-outbox: .venv/synced ## commit to stored, and rows per second of one relay; needs Debian's postgresql
	PYTHONPATH=tests $(RUN) python benchmarks/outbox.py $(BENCH)

chaos: .venv/synced ## try to break the promises; SEED=… reproduces a run, MINUTES=10, CHAOS="--faults 'kill a worker'"
	PYTHONPATH=tests $(RUN) python -m chaos --seed '$(SEED)' --minutes $(or $(MINUTES),3) $(CHAOS)

simulate: .venv/synced ## installations on virtual time, one from each seed: SEEDS=600 MINUTES=5, or SEED=7 again; SIMULATE="--processes 1"
	PYTHONPATH=tests $(RUN) python -m simulation $(if $(SEED),--seed '$(SEED)') $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(SIMULATE)

check: .venv/synced ## lint, formatting, floors, types, Lua scripts, blocking clients
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) lint-imports --no-logo
	$(RUN) mypy
	PYTHONPATH=tests $(RUN) python -m lint

pictures: .venv/synced ## take the pictures of docs/ again: dashboard and commands of a shop; needs Debian's chromium
	$(RUN) python -m demo.pictures $(PICTURES)

docs: .venv/synced ## build the docs site into site/; any warning fails
	PYTHONPATH=. $(RUN) mkdocs build --quiet

format: .venv/synced ## make the blocking clients from the asyncio ones, format, and mend what ruff can mend by itself
	PYTHONPATH=tests $(RUN) python -m lint.blocking
	$(RUN) ruff format
	$(RUN) ruff check --fix

dist: | $(filter .tools/%,$(UV)) ## build all sdists and wheels into dist/, the same bytes for the same commit
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(UV) build --quiet --all-packages --clear --out-dir dist
	cd dist && sha256sum *.whl *.tar.gz > SHA256SUMS

clean: ## remove what was made here
	rm -rf demo-spark.png .import_linter_cache .venv .venv-bench site .venv-lowest .tools dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

.venv/synced: pyproject.toml uv.lock $(wildcard */pyproject.toml) | $(filter .tools/%,$(UV))
	$(UV) sync --locked --all-packages --all-extras
	@touch $@

.tools/bin/uv:
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet 'uv>=0.13,<0.14'
