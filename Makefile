# Sandyard. `make` alone lists what can be done; every target sets up what it needs and is quick the second time.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help up engine web wheel types test test-all check clients compatibility screenshots format lock bench clean setup setup-dev setup-test setup-clients template template-interpreter template-desktop

HOST ?= 127.0.0.1
PORT ?= 8700
DATA ?=
ARGS ?=
# whoever runs the tests may pick some: make test TESTS=tests/unit
TESTS ?= tests
# two more at once than there are cores, for tests also wait; the files that take longest first, as tests/conftest.py sorts them
# unit tests do not wait: as many at once as there are cores
UNIT := pytest --numprocesses $$(nproc) --dist worksteal
PYTEST := pytest --numprocesses $$(( $$(nproc) < 4 ? $$(nproc) + 2 : 5 )) --dist loadfile --no-loadscope-reorder
# Python must be allowed to keep what it has compiled: every worker and every program that tests start compiles it otherwise
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.venv-node/bin:$(PATH)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Options: HOST ($(HOST)), PORT ($(PORT)), DATA (where its state is kept), as in: make up PORT=9000 DATA=var"

up: setup web template ## set up everything and serve the platform, with its engine, on HOST:PORT
	@exec sandyard up --host "$(HOST)" --port "$(PORT)" $(if $(DATA),--data-dir "$(DATA)") $(ARGS)

engine: setup template ## set up everything and serve the engine alone on HOST:PORT
	@exec sandyard engine --host "$(HOST)" --port "$(PORT)" $(if $(DATA),--data-dir "$(DATA)") $(ARGS)

web: ## build the web application; a running platform shows it with the next page
	@scripts/system-packages
	@scripts/web

wheel: setup web ## a wheel in dist/, with the web application in it
	@pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir dist .

types: setup-dev ## make the API's types for the web anew
	@scripts/node-packages web
	@scripts/web-types

test: setup-test web template template-interpreter ## set up everything and run the checks and the tests, in minutes
	@scripts/static
	@$(PYTEST) $(TESTS) $(ARGS)

test-all: setup-test setup-clients web template template-interpreter template-desktop ## all of that, the slow tests too, and every test on both databases
	@scripts/static
	@$(PYTEST) --all $(TESTS) $(ARGS)

check: setup-dev ## formatting, lint, types, import directions, unit tests
	@scripts/static
	@$(UNIT) --sqlite tests/unit $(ARGS)

format: setup-dev ## format the code and mend what ruff can mend
	@ruff format --quiet .
	@ruff check --fix .
	@scripts/node-packages web
	@cd web && npm run --silent format

bench: setup-dev template template-interpreter ## measure the engine beside its floors; a table, and JSON in bench/results
	@python -m bench $(ARGS)

screenshots: setup-test web template ## take pictures of every page, in light and dark, for docs/screenshots
	@python -m tests.web.screenshots

compatibility: setup-test template template-interpreter ## run the tests of the E2B protocol and write docs/e2b-compatibility.md from them
	@rm -rf .cache/compatibility
	@SANDYARD_COMPATIBILITY=$(CURDIR)/.cache/compatibility $(PYTEST) --all tests/protocol --ignore tests/protocol/test_compatibility.py $(ARGS)
	@python -m tests.protocol.compatibility .cache/compatibility

clients: setup-test setup-clients template template-interpreter template-desktop ## try programs of others that use E2B and write docs/e2b-clients.md from that
	@SANDYARD_CLIENTS_DOCUMENT=1 $(PYTEST) --all tests/protocol/test_clients.py $(ARGS)

lock: ## resolve the dependencies anew: make lock ARGS=--upgrade
	@scripts/system-packages
	@scripts/venv .venv requirements/dev.txt
	@scripts/node-packages
	@scripts/lock $(ARGS)

clean: ## remove what was made here: environments, caches, results (the engine's data and templates stay)
	@rm -rf .venv .venv-e2b-2.50 .venv-node .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build \
	  bench/results tests/protocol/js/node_modules tests/forge/js/node_modules \
	  web/node_modules web/openapi.json src/sandyard/platform/static
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

setup:
	@scripts/system-packages
	@scripts/venv .venv requirements/sandyard.txt requirements/dev.txt

setup-dev:
	@scripts/system-packages
	@scripts/venv .venv requirements/dev.txt

setup-test: setup-dev
	@scripts/system-packages tests
	@scripts/venv .venv-e2b-2.50 requirements/older-sdk.txt
	@scripts/node-packages tests/protocol/js
	@scripts/node-packages tests/forge/js

setup-clients:
	@scripts/system-packages clients

template: # the default template; where it cannot be built, the engine serves `host` in its place and says so
	@sandyard template build base --if-possible

template-interpreter: # for the code interpreter; an engine builds it by itself, in the background
	@sandyard template build code-interpreter --if-possible

template-desktop: # for desktops; an engine builds it by itself when it is first asked for
	@sandyard template build desktop --if-possible
