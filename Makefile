# Everything here sets itself up: a virtual environment, the dependencies and, where Spark is needed, Java.
#   make PYTHON=python3.12 ...   picks the interpreter of a new environment

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.installed-run
DEV    := $(VENV)/.installed-dev
JAVA   := scripts/with-java.sh
JOBS   ?= 2
SEEDS  ?= 1000
FIRST  ?= 0
CHECK_SEEDS := 300

export PYTHON

.PHONY: help demo test test-plain test-seeds sim-variants test-services test-services-quick check lint format sim bench clean distclean

help: ## show this
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  \033[36mmake %-19s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN) ## count words on an embedded Spark, kill a worker in the middle, verify the result
	$(JAVA) $(BIN)/weir demo

test: $(DEV) lint ## everything that must hold before a merge
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not spark and not services and not variants" tests
	$(JAVA) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --durations=10 -m spark tests

test-plain: ## a user's first hour, where nothing is installed but weir: README, resume, savepoint, state, demo
	scripts/setup.sh plain
	$(JAVA) .venv-plain/bin/python tests/plain.py

test-services: $(DEV) ## everything against real servers, which are fetched once: S3 (versitygw, MinIO) and HDFS
	scripts/services.sh s3 hdfs minio
	$(JAVA) $(BIN)/python -m pytest -q --durations=10 -m services tests/services

test-services-quick: $(DEV) ## what continuous integration runs of that: contracts and crashes on versitygw, contracts on HDFS
	scripts/services.sh s3 hdfs
	$(JAVA) $(BIN)/python -m pytest -q --durations=10 -m "services and quick" tests/services

check: $(DEV) lint ## the one-minute inner loop: ruff, mypy, unit and contract tests, 300 simulated seeds
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not spark and not slow" tests/unit tests/contract
	$(BIN)/python -m tests.sim.run --seeds $(CHECK_SEEDS)

lint: $(DEV) ## ruff and mypy only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: $(DEV) ## SEEDS=1000 FIRST=0 RESUME=1: that many simulated runs; SEED=n: replay one of them with its trace
	$(BIN)/python -m tests.sim.run \
	  $(if $(SEED),--seed $(SEED),--first $(FIRST) --seeds $(SEEDS) $(if $(RESUME),--resume))

test-seeds: $(DEV) ## random unit and contract tests with all of their seeds, of which make test runs half
	WEIR_ALL_SEEDS=1 $(BIN)/python -m pytest -q -n $(JOBS) -m "not spark" tests/unit tests/contract

sim-variants: $(DEV) ## the engine broken on purpose, in every way that we know: each must be caught
	$(BIN)/python -m pytest -q -n $(JOBS) -m variants --timeout=1800 tests/sim

bench: $(RUN) ## each workload once, one JSON line each
	for workload in filter keyed-sum keyed-process keyed-batches window sliding session interval-join latency recovery; do \
	  $(JAVA) $(BIN)/weir bench $$workload --json; \
	done
	for query in q0 q1 q2 q5 q7 q8 q11; do \
	  $(JAVA) $(BIN)/weir bench nexmark --query $$query --json; \
	done

clean: ## remove caches and what runs left behind; keeps the environment
	rm -rf .mypy_cache .pytest_cache .ruff_cache .sim build dist spark-warehouse metastore_db derby.log artifacts
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	rm -rf $(VENV) .venv-plain

$(RUN): pyproject.toml scripts/setup.sh
	scripts/setup.sh run
	touch $@

$(DEV): pyproject.toml scripts/setup.sh
	scripts/setup.sh dev
	touch $(RUN) $@
