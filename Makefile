# The one entry for people and for continuous integration. `make` alone lists the targets.
# Needs nothing but make and Python with venv and pip; every tool comes from requirements/dev.txt.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?= python3
WORKERS ?= 3

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
STAMP := $(VENV)/.installed
LOCK = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
    --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)

##@ Everyday

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	    /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	    /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(STAMP) ## Create .venv with the pinned tools and Corral itself (again only when they changed)

.PHONY: test
test: setup services lint types imports ## Everything that must hold before a commit
	$(PY) -m tests.contained $(PY) -m tests.second_try -n $(WORKERS) --dist worksteal tests

.PHONY: services
services: ## Install what some tests need (PostgreSQL, Chromium, Podman, SSH, Ray, torch), where that is possible
	@PYTHON=$(PYTHON) tools/services.sh

.PHONY: format
format: setup ## Rewrite the code in the house style
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

.PHONY: demo
demo: setup ## Watch a small mixed day on a live server with simulated GPUs; KEEP=1 leaves it running
	KEEP=$(KEEP) $(PY) examples/demo.py

##@ The parts of `make test`

.PHONY: lint
lint: setup ## Style (ruff)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

.PHONY: types
types: setup ## Types (mypy --strict)
	$(PY) -m mypy src tests $(wildcard examples)

.PHONY: imports
imports: setup ## Direction of imports, purity of what decides, declared dependencies
	$(VENV)/bin/lint-imports --no-logo
	$(PY) -m deptry src

##@ Longer

.PHONY: bench-engine
bench-engine: setup ## Time the engine; QUICK=1 for a short run
	$(PY) tests/bench/engine.py $(if $(QUICK),--quick)

.PHONY: bench-sim
bench-sim: setup ## Time the simulator; QUICK=1 for a short run (CORRAL_TRACES=folder for the public traces)
	$(PY) tests/bench/sim.py $(if $(QUICK),--quick)

.PHONY: bench-claim
bench-claim: setup ## What the default policy gains on public traces (CORRAL_TRACES=folder); ONLY=philly CACHE=folder
	$(PY) -m tests.bench.claim $(if $(ONLY),--only $(ONLY)) $(if $(CACHE),--cache $(CACHE))

.PHONY: bench-predict
bench-predict: setup ## How good predicted run times are, out of sample, on public traces (CORRAL_TRACES=folder)
	$(PY) -m tests.bench.predict

.PHONY: verify-traces
verify-traces: setup ## Every published figure, obtained again (CORRAL_TRACES=folder); QUICK=1 with fewer orders
	$(PY) -m corral.sim.research.published_checks $(if $(QUICK),--seeds 1)

.PHONY: bench-api
bench-api: setup ## Load a whole server over HTTP; QUICK=1 for a short run (CORRAL_SLURM=folder: Slurm beside it)
	$(PY) tests/bench/api.py $(if $(QUICK),--quick)

.PHONY: bench-bulk
bench-bulk: setup ## Change many jobs by one command; JOBS=6000
	$(PY) -m tests.bench.bulk --jobs $(or $(JOBS),6000)

.PHONY: bench-preempt
bench-preempt: setup ## Preempt the documented training loop on a real server; COUNT=200 times (20)
	$(PY) -m tests.bench.preempt --count $(or $(COUNT),20)

.PHONY: bench-starts
bench-starts: setup ## Start tasks of eight processes each beside busy processes; COUNT=500 times (50)
	$(PY) -m tests.bench.starts --count $(or $(COUNT),50)

.PHONY: bench-ui
bench-ui: setup services ## The dashboard in a browser: size, first page, updates, memory, viewers, logs; QUICK=1 for a short run
	$(PY) -m tests.bench.ui $(if $(QUICK),--quick)

.PHONY: soak-breaks
soak-breaks: setup services ## Break the feed of the dashboard, and compare the page with a new one; BREAKS=10 for a short run, SEED=
	$(PY) -m tests.browser.breaks --breaks $(or $(BREAKS),100) --seed $(or $(SEED),1)

.PHONY: screenshots
screenshots: setup services ## A picture of every page of the dashboard, in two widths and themes, into FOLDER=screenshots
	$(PY) -m tests.browser.screenshots --folder $(or $(FOLDER),screenshots)

.PHONY: bench-logs
bench-logs: setup ## `corral logs` of 100 ranks that have written 1 GB; SIZE=64 (MiB) for a short run
	$(PY) -m tests.bench.logs --size $(or $(SIZE),1024)

.PHONY: bench-cliffs
bench-cliffs: setup ## What grows out of proportion: dependencies, tasks, readers, shapes, queues; QUICK=1 for a short run
	$(PY) tests/bench/cliffs.py $(if $(QUICK),--quick)

.PHONY: bench-limits
bench-limits: setup ## How late time limits, graces and deadlines are on an idle server; COUNT=500 of each (100)
	$(PY) -m tests.bench.limits --count $(or $(COUNT),100)

.PHONY: bench-gangs
bench-gangs: setup services ## Kill machines and ranks under gangs with real collectives; ROUNDS=20
	$(PY) -m tests.bench.gangs --torch .venv-torch/bin/python --rounds $(or $(ROUNDS),20)

.PHONY: bench-checkpoint
bench-checkpoint: setup services ## Stall, time and bandwidth of saves with torch; RANKS=2 MIB=256, POINTS=1000 crash points
	$(PY) -m tests.checkpoints.crash_points --points $(or $(POINTS),1000)
	PYTHONPATH=src:. .venv-torch/bin/python -W ignore -m tests.bench.checkpoint_saves --ranks $(or $(RANKS),2) --mib $(or $(MIB),256)

.PHONY: bench-steps
bench-steps: setup ## How long a job step takes, how many a minute, and whether 64 outputs stay whole; STEPS=300
	$(PY) -m tests.bench.job_steps --steps $(or $(STEPS),300)

.PHONY: bench-lemons
bench-lemons: setup ## How fast bad machines are found, and how often good ones are marked as bad, in simulated months; SEEDS=3
	$(PY) -m tests.bench.lemons --seeds $(or $(SEEDS),3)

.PHONY: bench-fleet
bench-fleet: setup ## Load a server with agents and submissions; QUICK=1 for a short run
	$(PY) -m tests.bench.fleet $(if $(QUICK),--seconds 20 --idle-seconds 10)

.PHONY: bench-restart
bench-restart: setup ## Restart a server under agents and a long queue; AGENTS=300 PENDING=20000 ROUNDS=2 for a short run
	$(PY) -m tests.bench.restart --agents $(or $(AGENTS),1500) --pending $(or $(PENDING),200000) --rounds $(or $(ROUNDS),10)

.PHONY: attack
attack: setup ## Everything that users can do to a server at once, beside 200 agents; SECONDS=60 for a short one
	$(PY) -m tests.bench.attack $(if $(SECONDS),--seconds $(SECONDS))

.PHONY: soak-fleet
soak-fleet: setup services ## Cut off, freeze and kill machines and leaders; TRIALS=20 for a short one
	$(PY) -m tests.e2e.fleet --trials $(or $(TRIALS),1000) --takeovers $(if $(TRIALS),5,50) --freeze-s $(if $(TRIALS),8,45)

.PHONY: soak-training
soak-training: setup services ## Preempt and kill real training with four ranks on two nodes; MINUTES=20, SEED=, PREEMPTIONS=200 for only those
	$(PY) -m tests.e2e.training_soak --torch .venv-torch/bin/python --minutes $(or $(MINUTES),20) --seed $(or $(SEED),1) \
	    $(if $(PREEMPTIONS),--preemptions $(PREEMPTIONS))

.PHONY: bench-frameworks
bench-frameworks: setup services ## Preempt Lightning, Hugging Face, Accelerate, torchrun and Ray Train; COUNT=10 times each
	sh tools/services.sh raytrain
	$(PY) -m tests.e2e.frameworks --count $(or $(COUNT),10)

.PHONY: soak-database
soak-database: setup services ## Three servers and every fault of a database, under load; FAULTS=3 of each kind, SEED=, KINDS=
	$(PY) -m tests.e2e.database_faults --faults $(or $(FAULTS),20) --seed $(or $(SEED),0) --kinds "$(KINDS)"

.PHONY: bench-batch
bench-batch: setup services ## Batching queues: decisions, a live server, and Ray Serve, LitServe and Celery beside it; ITEMS=5000 for a short run
	$(PY) -m tests.bench.batch --items $(or $(ITEMS),30000)

.PHONY: soak-batch
soak-batch: setup ## Kill server, batch process and workers in mid-batch; TRIALS=20 for a short one
	$(PY) -m tests.e2e.batch_soak --trials $(or $(TRIALS),200)

.PHONY: soak-kubernetes
soak-kubernetes: setup services ## Kill the API server, cut watches, lose answers and silence nodes under gangs of pods; TRIALS=20 for a short one, SEED=
	$(PY) -m tests.e2e.kubernetes_soak --trials $(or $(TRIALS),200) --seed $(or $(SEED),1)

.PHONY: bench-pods
bench-pods: setup services ## How fast gangs become pods, and how many requests that takes; TASKS=100 for a short run
	$(PY) -m tests.bench.pods --tasks $(or $(TASKS),1000)
.PHONY: soak-broker
soak-broker: setup services ## Submit through a broker while server, broker and intake are killed; MESSAGES=4000 for a short one, REDIS=1
	$(PY) -m tests.intake.soak --messages $(or $(MESSAGES),100000) $(if $(REDIS),--redis)

.PHONY: search-batches
search-batches: setup ## Batch a million random items in virtual time, every law after every decision; ITEMS=, SEED=
	$(PY) -m tests.batching.driver --items $(or $(ITEMS),1000000) --seed $(or $(SEED),1)

.PHONY: soak
soak: setup ## A million random steps, every law after every event; then a thousand kills of a server under load
	$(PY) -m tests.simulation.soak
	$(PY) -m tests.e2e.kill

.PHONY: fuzz-nodes
fuzz-nodes: setup ## Hostile nodes and task files against the server's parts; CASES=, FILES= and SEED= to choose
	$(PY) -m tests.fuzz.nodes --cases $(or $(CASES),1000000) --files $(or $(FILES),100000) --seed $(or $(SEED),1)

.PHONY: search
search: setup ## Judge random plans and whole runs against every rule; CASES=1000000 plans, RUNS=2000, SEED=
	$(PY) -m tests.judges.search --cases $(or $(CASES),100000) --runs $(or $(RUNS),200) --seed $(or $(SEED),1)

.PHONY: mutants
mutants: setup ## Plant bugs on purpose and see that a named test catches each
	$(PY) tests/mutants/run.py

.PHONY: coverage
coverage: setup ## Which lines and branches the tests reach
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -q tests
	$(PY) -m coverage combine -q
	$(PY) -m coverage report

##@ Upkeep

.PHONY: compat-slurm
compat-slurm: setup ## Run the scripts of SCRIPTS=folder under a private Slurm and under Corral, and compare (root, Debian's slurm-wlm)
	$(PY) -m tests.slurm_scripts.compare $(SCRIPTS)

.PHONY: accept
accept: setup ## Rewrite the golden scenarios with what the engine now does (then read the diff)
	$(PY) -m pytest tests/scenarios tests/architecture/test_generated.py --accept

.PHONY: lock
lock: ## Compile requirements/*.txt again (needs uv); UPGRADE=1 takes newer versions
	@command -v uv >/dev/null || { echo "make lock needs uv on the PATH" >&2; exit 1; }
	$(LOCK) pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	$(LOCK) requirements/ray.in --output-file requirements/ray.txt
	$(LOCK) requirements/raytrain.in --output-file requirements/raytrain.txt

.PHONY: clean
clean: ## Remove caches and build output (keeps .venv)
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache \
	    .pytest_cache .ruff_cache
	find src tests $(wildcard examples) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment ---------------------------------------------------------------------------------

# The stamp is written last, so an interrupted installation is taken up again by the next call.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(check-python)
	@$(check-venv)
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --require-hashes -r requirements/dev.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(PIP) check
	@touch $@

define check-python
command -v $(PYTHON) >/dev/null || { \
    echo "Corral needs Python 3.11 or newer, and '$(PYTHON)' was not found; say make PYTHON=..." >&2; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
    echo "Corral needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); say make PYTHON=..." >&2; \
    exit 1; }
endef

# Debian and Ubuntu ship ensurepip in a package of its own, named after the version of Python.
define check-venv
has_venv() { $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; }; \
package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
if ! has_venv && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
    echo "installing $$package, which '$(PYTHON) -m venv' needs"; \
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$package; \
fi; \
has_venv || { \
    echo "'$(PYTHON) -m venv' does not work because ensurepip is missing." >&2; \
    echo "On Debian or Ubuntu: apt-get install $$package; elsewhere install Python with venv and pip." >&2; \
    exit 1; }
endef
