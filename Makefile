# Every target runs what CI runs. `make help` lists them.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz lint protos envoy-config docs bench calibration clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.installed ## create the virtual environment with everything in it

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

test: setup ## all tests
	$(BIN)/python -m pytest

fuzz: setup ## broken requests by seed and count: none may break the picker
	$(BIN)/python -m tests.fuzz.bodies --count 20000

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: setup ## a real Envoy, the picker and three simulated regions, end to end
	$(BIN)/epp demo

protos: setup ## regenerate epp/pb from protos/
	$(BIN)/python tools/gen_protos.py

envoy-config: setup ## render deploy/envoy/ again
	$(BIN)/python -m epp.envoy.examples

docs: setup ## write the generated pages again: configuration, metrics, dashboard, APIs
	$(BIN)/python tools/gen_config_docs.py
	$(BIN)/python tools/gen_metrics_docs.py
	$(BIN)/python tools/gen_dashboard.py
	$(BIN)/python -m tools.gen_api_docs

bench: setup ## what requests cost here, in CPU time and ratios
	$(BIN)/python -m bench.transport --rounds 3
	$(BIN)/python -m bench.recorder
	$(BIN)/python -m bench.observe
	$(BIN)/python -m bench.restore_model
	$(BIN)/python -m bench.simulator

calibration: setup ## the simulator beside published numbers, into docs/simulator.md (10 minutes)
	$(BIN)/python -m bench.calibration

clean: ## remove what the targets made
	rm -rf $(VENV) build dist demo-out report .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
