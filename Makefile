# Everything a user or a developer types. Needs Python 3.11+ (with venv) and make; the rest is installed into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
VLLM   ?= .venv-vllm

.DEFAULT_GOAL := help
.PHONY: help run test test-vllm check format bench clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 22

# One environment for all: installing twice costs more than a few megabytes of test tools.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY) ## agent sessions through a real Envoy: SMetric against round robin (ARGS="--help" for options)
	@trap : INT; $(BIN)/python -m loadgen demo $(ARGS) || test $$? -eq 130 # Ctrl-C is no error

test: $(READY) ## all tests, on real Envoy and real Redis (ARGS="-k name" for some)
	@$(BIN)/python -m pytest $(ARGS)

test-vllm: $(READY) ## predictions against two real vLLM instances on the CPU (3.5 GB, ten minutes)
	@bash tests/vllm/setup.sh $(VLLM)
	@SMETRIC_VLLM=$(abspath $(VLLM)) $(BIN)/python -m pytest tests/vllm $(ARGS)

check: $(READY) ## ruff (format, lint), walls between the rooms (transitive imports), mypy --strict
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

format: $(READY) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY) ## every benchmark; prints tables, asserts nothing
	@for name in prompt policies index events decision overhead; do echo "== $$name"; $(BIN)/python -m bench.$$name || exit 1; done

clean: ## remove everything that make created
	rm -rf $(VENV) .venv-vllm .pytest_cache .mypy_cache .ruff_cache .hypothesis out build *.egg-info
