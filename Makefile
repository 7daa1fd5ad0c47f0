# Every target sets up what it needs. The work is done by small programs in hack/.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help demo test check lint types layers unit proto test-node test-cluster bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/ready: pyproject.toml
	hack/venv $(PYTHON) $(VENV)

demo: $(VENV)/ready ## from a fresh machine to claims pinned on a real runtime
	hack/demo

# Measuring which branches no test takes makes the tests half as fast.
test: COVERAGE := --cov --cov-report=term:skip-covered
test: check test-node test-cluster ## everything, with coverage

check: lint types layers proto unit ## lint, types, layers, generated code, unit, property and protocol tests

lint: $(VENV)/ready ## style and form, of the Go programs too
	ruff check .
	ruff format --check .
	hack/nri-runtime check
	hack/kubelet-allocator check

types: $(VENV)/ready ## mypy, strict
	mypy

layers: $(VENV)/ready ## lower layers import no higher ones
	lint-imports

proto: $(VENV)/ready ## regenerate generated code; fails when that changes anything
	hack/proto

unit: $(VENV)/ready ## unit, property and protocol tests
	hack/nri-runtime build
	hack/kubelet-allocator build
	hack/hwloc
	pytest -n 3 -m 'not node and not cluster' $(COVERAGE) tests

test-node: $(VENV)/ready ## tests on the node in a box: real kernel, real containerd
	pytest -n 2 -m node tests/node

# Not in parallel: a cluster keeps both cores of a small machine busy. Most tests share one, some start one beside it.
test-cluster: $(VENV)/ready ## tests on a cluster in a box: real Kubernetes around the real runtime
	hack/cluster build
	pytest -m cluster tests/bench tests/cluster

bench: $(VENV)/ready ## the figures of docs/performance.md
	hack/bench

clean: ## what the work tree does not need; caches outside it stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage *.egg-info
