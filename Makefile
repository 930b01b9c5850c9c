# The one entry point. `make demo` and `make test` need Python 3.11+ and, once, about five minutes to build a local
# Kubernetes control plane; everything that they install lies in .venv and in the user's cache folder.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3 make ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: install
install: $(STAMP) ## Make .venv with everything for development

.PHONY: demo
demo: $(STAMP) ## Show the operator on a real local control plane (ONCE=1: check it and stop it again)
	$(BIN)/sharepod demo up $(if $(ONCE),--once)

.PHONY: test
test: lint $(STAMP) ## Everything: lint, unit tests, tests on a real control plane
	$(BIN)/sharepod demo build
	$(PYTEST) -n 2 --dist loadfile -m "not cluster" -q
	$(PYTEST) -m cluster -q

.PHONY: test-fast
test-fast: $(STAMP) ## The tests that need no cluster
	$(PYTEST) -n 2 --dist loadfile -m "not cluster and not image" -q

.PHONY: test-cluster
test-cluster: $(STAMP) ## The tests on a real control plane
	$(PYTEST) -m cluster -q

.PHONY: lint
lint: $(STAMP) ## ruff, mypy --strict and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.PHONY: format
format: $(STAMP) ## Let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: crds
crds: $(STAMP) ## Generate crds/ from Python
	$(BIN)/python -m sharepod_operator.manifest.crd > crds/sharepods.yaml

.PHONY: policies
policies: $(STAMP) ## Generate manifests/policies.yaml from Python
	$(BIN)/python -m sharepod_operator.manifest.policies > manifests/policies.yaml

.PHONY: manifests
manifests: crds policies ## Generate crds/ and manifests/install.yaml with all of its parts
	scripts/install-yaml.sh > manifests/install.yaml

.PHONY: bench
bench: bench-decisions bench-packing bench-apply bench-latency bench-memory bench-preemption ## All benchmarks; the OpenB trace comes from SHAREPOD_TRACE_DIR

.PHONY: bench-decisions
bench-decisions: $(STAMP) ## Decisions per second, and how the cost grows with the cluster
	$(BIN)/python -m benchmarks.decisions

.PHONY: bench-packing
bench-packing: $(STAMP) ## GPU allocation on the OpenB trace, beside other policies
	$(BIN)/python -m benchmarks.packing

.PHONY: bench-apply
bench-apply: $(STAMP) ## From create to bound and ready, beside Deployments with kube-scheduler
	$(BIN)/python -m benchmarks.apply

.PHONY: bench-latency
bench-latency: $(STAMP) ## One SharePod on an idle cluster of 500 nodes, beside kube-scheduler
	$(BIN)/python -m benchmarks.latency

.PHONY: bench-memory
bench-memory: $(STAMP) ## Memory, cold start and rest with 1,000 nodes and 10,000 SharePods, 2,000 of them hopeless
	$(BIN)/python -m benchmarks.memory

.PHONY: bench-preemption
bench-preemption: $(STAMP) ## Who has to leave: decision times, and many preemptors at once beside kube-scheduler
	$(BIN)/python -m benchmarks.preemption

.PHONY: lock
lock: $(STAMP) ## Renew requirements/ from pyproject.toml
	$(BIN)/uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-annotate --no-emit-index-url -o requirements/operator.txt
	$(BIN)/uv pip compile -q pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url -c requirements/operator.txt -o requirements/dev.txt
	$(BIN)/uv pip compile -q --group build --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url -c requirements/dev.txt -o requirements/build.txt

.PHONY: clean
clean: ## Remove what was made here; the cache of control plane binaries stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
