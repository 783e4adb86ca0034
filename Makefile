# Sandyard. `make` alone lists what can be done; every target sets up what it needs and is quick the second time.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help up engine test check format lock bench clean setup setup-dev setup-test template

HOST ?= 127.0.0.1
PORT ?= 8700
DATA ?=
ARGS ?=
# whoever runs the tests may pick some: make test TESTS=tests/unit
TESTS ?= tests
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Options: HOST ($(HOST)), PORT ($(PORT)), DATA (where its state is kept), as in: make up PORT=9000 DATA=var"

up: setup template ## set up everything and serve the platform, with its engine, on HOST:PORT
	@exec sandyard up --host "$(HOST)" --port "$(PORT)" $(if $(DATA),--data-dir "$(DATA)") $(ARGS)

engine: setup template ## set up everything and serve the engine alone on HOST:PORT
	@exec sandyard engine --host "$(HOST)" --port "$(PORT)" $(if $(DATA),--data-dir "$(DATA)") $(ARGS)

test: setup-test template ## set up everything and run every test and check
	@$(MAKE) --no-print-directory static
	@pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(TESTS) $(ARGS)

check: setup-dev static ## formatting, lint, types, import directions, unit tests
	@pytest tests/unit $(ARGS)

.PHONY: static
static:
	@ruff format --check --quiet .
	@ruff check --quiet .
	@mypy
	@lint-imports --no-logo

format: setup-dev ## format the code and mend what ruff can mend
	@ruff format --quiet .
	@ruff check --fix .

bench: setup-dev template ## measure the engine beside its floors; a table, and JSON in bench/results
	@python -m bench $(ARGS)

lock: setup-dev ## resolve the dependencies anew: make lock ARGS=--upgrade
	@scripts/node-packages tests/protocol/js
	@scripts/lock $(ARGS)

clean: ## remove what was made here: environments, caches, results (the engine's data and templates stay)
	@rm -rf .venv .venv-e2b-2.50 .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build \
	  bench/results tests/protocol/js/node_modules tests/forge/js/node_modules
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

setup:
	@scripts/system-packages
	@scripts/venv .venv requirements/sandyard.txt requirements/dev.txt

setup-dev:
	@scripts/system-packages
	@scripts/venv .venv requirements/dev.txt
	@scripts/node-packages tests/forge/js

setup-test: setup-dev
	@scripts/system-packages tests
	@scripts/venv .venv-e2b-2.50 requirements/older-sdk.txt
	@scripts/node-packages tests/protocol/js

template: # the default template; where it cannot be built, the engine serves `host` in its place and says so
	@sandyard template build base --if-possible
