# Sandyard. `make` lists the targets. Every target sets up what it needs and is fast on later runs.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help up engine web wheel types test test-all check audit clients compatibility isolation screenshots format lock bench proof docs references clean setup setup-dev setup-test setup-clients setup-deployment setup-ray template template-interpreter template-desktop template-docker

HOST ?= 127.0.0.1
PORT ?= 8700
DATA ?=
ARGS ?=
# Select tests: make test TESTS=tests/unit
TESTS ?= tests
# Unit tests do not wait for anything: one worker per core.
UNIT := pytest --numprocesses $$(nproc) --dist worksteal
# Other tests also wait: two workers more than cores. tests/conftest.py sorts the slowest files first.
PYTEST := pytest --numprocesses $$(( $$(nproc) < 4 ? $$(nproc) + 2 : 5 )) --dist loadfile --no-loadscope-reorder
# What `make test-all` runs again in gVisor sandboxes: all of the protocol except what asks for a level itself or needs no sandbox.
GVISOR_TESTS := tests/protocol $(patsubst %,--ignore tests/protocol/test_%.py,docker docker_gvisor clients compatibility)
# Let Python write bytecode; otherwise every worker and every program that the tests start compiles everything again.
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.venv-node/bin:$(PATH)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Options: HOST ($(HOST)), PORT ($(PORT)), DATA (data directory), for example: make up PORT=9000 DATA=var"

up: setup web template ## set up everything and run the platform and its engine on HOST:PORT
	@exec sandyard up --host "$(HOST)" --port "$(PORT)" $(if $(DATA),--data-dir "$(DATA)") $(ARGS)

engine: setup template ## set up everything and run only the engine on HOST:PORT
	@exec sandyard engine --host "$(HOST)" --port "$(PORT)" $(if $(DATA),--data-dir "$(DATA)") $(ARGS)

web: ## build the web application; a running platform serves it on the next page load
	@scripts/system-packages
	@scripts/web

wheel: setup web ## build a wheel in dist/, including the web application, and its software bill of materials
	@pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir dist .
	@python scripts/sbom dist/sandyard.cdx.json

types: setup-dev ## generate the API types for the web
	@scripts/node-packages web
	@scripts/web-types

test: setup-test web template template-interpreter ## set up everything and run the checks and the tests (minutes)
	@scripts/static
	@$(PYTEST) $(TESTS) $(ARGS)

test-all: docs setup-test setup-clients setup-deployment setup-ray web template template-interpreter template-desktop template-docker ## like test, with the slow tests, both databases, and the protocol in gVisor sandboxes
	@scripts/static
	@$(PYTEST) --all $(TESTS) $(ARGS)
	@$(if $(filter tests,$(TESTS)),$(PYTEST) --all --min-isolation gvisor $(GVISOR_TESTS) $(ARGS))

check: setup-dev ## check formatting, lint, types and import directions, and run the unit tests
	@scripts/static
	@$(UNIT) --sqlite tests/unit $(ARGS)

audit: setup-dev ## look up known vulnerabilities of the dependencies; needs the services of the package registries
	@scripts/node-packages
	@scripts/audit

format: setup-dev ## format the code and apply ruff's automatic fixes
	@ruff format --quiet .
	@ruff check --fix .
	@scripts/node-packages web
	@cd web && npm run --silent format

bench: setup-dev template template-interpreter ## run the benchmarks; prints a table and writes JSON to bench/results
	@python -m bench $(ARGS)

proof: setup-test setup-ray web template template-interpreter template-docker ## try what the README claims, and write docs/proof.md (an hour or more; ARGS=--full: many hours)
	@python -m tests.proof $(ARGS)

docs: ## build the documentation as a site in build/docs; broken links and anchors are errors
	@scripts/system-packages
	@scripts/docs

references: setup-dev ## generate docs/reference from the code: settings, commands, events, routes
	@python -m tests.documents

screenshots: setup-test web template ## take screenshots of every page, light and dark, for docs/screenshots
	@python -m tests.web.screenshots

compatibility: setup-test template template-interpreter ## run the E2B protocol tests and generate docs/e2b-compatibility.md
	@rm -rf .cache/compatibility
	@SANDYARD_COMPATIBILITY=$(CURDIR)/.cache/compatibility $(PYTEST) --all tests/protocol --ignore tests/protocol/test_compatibility.py $(ARGS)
	@python -m tests.protocol.compatibility .cache/compatibility

isolation: setup-test template template-docker ## try known escapes at every isolation level and generate docs/isolation.md
	@rm -rf .cache/isolation
	@SANDYARD_ISOLATION=$(CURDIR)/.cache/isolation pytest --all tests/acceptance/test_isolation.py $(ARGS)
	@python -m tests.acceptance.isolation .cache/isolation

clients: setup-test setup-clients template template-interpreter template-desktop ## test third-party E2B clients and generate docs/e2b-clients.md
	@SANDYARD_CLIENTS_DOCUMENT=1 $(PYTEST) --all tests/protocol/test_clients.py $(ARGS)

lock: ## update the lock files; to upgrade: make lock ARGS=--upgrade
	@scripts/system-packages
	@scripts/venv .venv requirements/dev.txt
	@scripts/node-packages
	@scripts/lock $(ARGS)

clean: ## remove environments, caches and results (keeps the engine's data and templates)
	@rm -rf .venv .venv-docs .venv-e2b-2.50 .venv-node .venv-ray .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build \
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
	@sandyard setup gvisor >/dev/null || echo "The tests of gVisor will be skipped."

setup-clients:
	@scripts/system-packages clients

setup-deployment: # programs with which the files in deploy/ are tested
	@scripts/system-packages deployment
	@scripts/deployment-programs >/dev/null
	@scripts/kubernetes-api-server

setup-ray: # an environment with Ray, for the tests of hosts that Ray starts
	@scripts/venv .venv-ray requirements/ray.txt

template: # the default template; if it cannot be built, the engine uses `host` instead and says so
	@sandyard template build base --if-possible

template-interpreter: # for the code interpreter; an engine also builds it automatically, in the background
	@sandyard template build code-interpreter --if-possible

template-docker: # for Docker in sandboxes; an engine also builds it automatically on the first request
	@sandyard template build docker --if-possible

template-desktop: # for desktops; an engine also builds it automatically on the first request
	@sandyard template build desktop --if-possible
