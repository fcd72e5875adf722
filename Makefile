# All goals work in a fresh clone. `make setup` installs missing parts, and returns at once if nothing is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PYTEST = $(BIN)/python -m pytest --dist=loadgroup $(DURATIONS)
# Test durations are kept by goal, path and commit, so that two commits can be compared.
COMMIT := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
DURATIONS = --junitxml=build/durations/$@-$(COMMIT).xml
# An empty value counts as unset. Some machines set this variable globally. Then Python would cache no compiled sources: each of
# some hundred starts of the daemon would compile all of them again, and each pytest process would compile the tests.
export PYTHONDONTWRITEBYTECODE :=
# Two jobs: the jars are downloaded while the compiled row path is built, and types are checked while the row path is checked.
MAKEFLAGS += --jobs=2
# No goal calls another make that would need the job count from these variables, and cargo treats a job count that it can't use
# as an error.
unexport MAKEFLAGS MFLAGS
# Tests of the code that the compiled row path replaces. Here they run in Python, as on a system without the compiled row path.
# Left out are files that never use anything compiled: they would test the same code once more.
SAME_ON_BOTH_PATHS := $(patsubst %,tests/stream/%.py,test_ledger commits/test_backlog commits/test_checkpoint \
  commits/test_open_transaction commits/test_owned_topics commits/test_ownership commits/test_unseen reports/test_limbo_watch \
  transactions/test_transaction_buffer) \
  $(patsubst %,tests/protocol/test_%.py,codec extensions failure log_file relay_filter system_spaces)
ROW_PATH_TESTS := tests/stream tests/images tests/protocol tests/sources $(SAME_ON_BOTH_PATHS:%=--ignore=%)
PYTHON_PATH = TARANTOOL_CDC_PURE=1 $(PYTEST:.xml=-python.xml) -m 'not soak' $(ROW_PATH_TESTS) --numprocesses=2 --budget=0.1

.PHONY: help setup demo check check-newest check-native native compiled test coverage soak bench lint lock wheel spark-zip image-check system clean

help:
	@echo 'make setup   install what is missing: system packages, .venv, the jars of Kafka and Spark, OpenSearch'
	@echo 'make demo    real Tarantool, Kafka and Spark on this machine, with a workload, end to end'
	@echo 'make check   lint and all tests that need no servers'
	@echo 'make check-newest   the same by Python 3.13, if it is installed'
	@echo 'make test    lint and all tests but the soak'
	@echo 'make coverage   how much of each package the tests without servers run, by lines and branches'
	@echo 'make soak    the long drills'
	@echo 'make bench   the measurements'
	@echo 'make lint    ruff, mypy and the warnings of the compiler'
	@echo 'make wheel   dist/*.whl: the daemon, with the compiled row path, and the Spark jobs, for pip'
	@echo 'make spark-zip   dist/spark_jobs.zip: the Spark jobs alone, for spark-submit --py-files'
	@echo 'make image-check   the steps of the Dockerfile in bare Debian roots, by root with debootstrap, for machines without Docker'
	@echo 'make lock    compile requirements.lock anew (make lock UPGRADE=1: with the newest versions)'

setup: system $(STAMPS)/packages $(STAMPS)/project $(STAMPS)/jars

demo: setup
	$(BIN)/tarantool-cdc demo

# What is checked of the sources, without running them.
STATIC := lint check-native

# Checks without servers, to be run after each change.
check: setup $(STATIC)
	$(PYTEST) -m 'not live and not spark and not soak' --numprocesses=2 --budget=0.2 --seeds=40
	$(PYTHON_PATH)

# `make check` by the newest Python that is supported, in a virtual environment of its own, if the system has that Python. ruff, mypy
# and cargo say the same whatever Python runs them (mypy checks for the oldest one), so only the compiler's warnings remain.
NEWEST := python3.13
check-newest:
	@if $(NEWEST) --version >/dev/null 2>&1; then $(MAKE) check PYTHON=$(NEWEST) VENV=.venv-newest STATIC="compiled native"; \
	else echo 'This system has no $(NEWEST): not checked.'; fi

# Four processes, as most tests wait for their servers most of the time.
test: setup lint check-native $(STAMPS)/clickhouse
	$(PYTEST) -m 'not soak' --numprocesses=4 --budget=0.25 --durations=40
	$(PYTHON_PATH)

# Checks of the compiled row path. Some systems' cargo packages lack clippy or rustfmt; a missing tool is skipped. With the profile
# and the Python of the module's build, clippy reuses most of the compiled dependencies.
check-native: native
	export PYO3_PYTHON=$(CURDIR)/$(BIN)/python; \
	cd cdc/native; \
	for tool in 'fmt --check' 'clippy --release --locked --all-targets -- -D warnings'; do \
	  if cargo $${tool%% *} --version >/dev/null 2>&1; then cargo $$tool; else echo "cargo has no $${tool%% *}: not checked"; fi; \
	done; \
	cargo test --locked --quiet --no-default-features

native: setup
	$(BIN)/python -c 'from cdc import native; assert native.ROW_PATH == "native", native.REASON'

# Coverage of the tests without servers, on both row paths. Each process writes a file; the files are combined at the end.
COVERED := $(BIN)/python -m coverage run -m pytest --dist=loadgroup --quiet
coverage: setup
	rm -rf build/coverage
	mkdir -p build/coverage
	$(COVERED) -m 'not live and not spark and not soak' --numprocesses=2 --budget=0.1
	TARANTOOL_CDC_PURE=1 $(COVERED) $(ROW_PATH_TESTS) --numprocesses=2 --budget=0.1
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage json --quiet -o build/coverage/report.json
	$(BIN)/python -m tests.coverage_table build/coverage/report.json

soak: setup
	$(BIN)/python -m pytest -m soak --durations=0

bench: setup
	$(BIN)/python -m tests.bench

lint: compiled
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

compiled: system $(STAMPS)/packages
	$(BIN)/python -W error -m compileall -q -f cdc spark_jobs tests

# Checks for programs rather than package names, as a server from another source is fine, too.
system:
	@missing=(); \
	command -v tarantool >/dev/null || missing+=(tarantool); \
	command -v mvn >/dev/null || missing+=(maven); \
	command -v redis-server >/dev/null || missing+=(redis-server); \
	command -v memcached >/dev/null || missing+=(memcached); \
	command -v cargo >/dev/null || missing+=(cargo); \
	java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || missing+=(java); \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv); \
	if (( $${#missing[@]} )); then \
	  command -v apt-get >/dev/null || { \
	    echo "Missing: $${missing[*]} (java: 17 or newer). Install them with this system's package manager." >&2; exit 1; }; \
	  as_root=(); (( $$(id -u) == 0 )) || as_root=(sudo); \
	  "$${as_root[@]}" apt-get update; \
	  packages=(); \
	  for name in "$${missing[@]}"; do \
	    if [[ $$name == cargo ]] && apt-cache show cargo-web >/dev/null 2>&1; then packages+=(cargo-web rustc-web); \
	    elif [[ $$name != java ]]; then packages+=("$$name"); \
	    elif apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then packages+=(openjdk-17-jre-headless); \
	    else packages+=(default-jre-headless); fi; \
	  done; \
	  "$${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$${packages[@]}"; \
	fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make setup PYTHON=python3.11")'

# Source packages (pyspark) are built with the locked setuptools, not with the newest release. Old and new versions of pip read
# different variables, so both are set.
$(STAMPS)/packages: requirements.lock | system
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	sed -nE 's/^((setuptools|setuptools-rust|wheel)==[^ ]+).*/\1/p' requirements.lock > $(STAMPS)/build-tools.txt
	PIP_CONSTRAINT=$(STAMPS)/build-tools.txt PIP_BUILD_CONSTRAINT=$(STAMPS)/build-tools.txt \
	  $(BIN)/python -m pip install --disable-pip-version-check --use-pep517 --require-hashes -r requirements.lock
	touch $@

$(STAMPS)/project: pyproject.toml $(STAMPS)/packages $(wildcard cdc/native/Cargo.* cdc/native/build.rs cdc/native/src/*.rs)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m cdc.native
	touch $@

$(STAMPS)/clickhouse: tests/clickhouse/requirements.txt $(STAMPS)/packages $(STAMPS)/project
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r $<
	touch $@

$(STAMPS)/jars: cdc/local/jars.py cdc/local/class_archives.py $(STAMPS)/packages
	$(BIN)/python -m cdc.local.jars
	$(BIN)/python -m cdc.local.class_archives
	touch $@

# setuptools, setuptools-rust and wheel are locked, too, as they build pyspark and this project.
lock:
	test -x build/uv/bin/uv || { $(PYTHON) -m venv build/uv && build/uv/bin/python -m pip install --quiet uv; }
	printf 'setuptools>=77\nsetuptools-rust>=1.10,<2\nwheel\n' | build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-index-annotation \
	  --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade) \
	  --extra filter --extra registry --extra spark --extra feeds --extra lineage --extra local --extra dev pyproject.toml - --output-file requirements.lock

# Needs some GB in build/images, and as long as the images take to build.
image-check: setup
	$(BIN)/python -m tests.image_check

wheel: setup
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

spark-zip:
	mkdir -p dist
	find spark_jobs -name '*.py' | sort | $(PYTHON) -c 'import sys, zipfile; \
	  archive = zipfile.ZipFile("dist/spark_jobs.zip", "w", zipfile.ZIP_DEFLATED); \
	  [archive.write(name) for name in sys.stdin.read().split()]; archive.close()'

clean:
	rm -rf $(VENV) .venv-newest build dist cdc/native/target cdc/_native*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
