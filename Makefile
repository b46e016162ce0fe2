# Everything a newcomer needs: `make demo` shows fedlag at work, `make test` checks it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types check benchmarks soak clean

demo: $(READY)
	@$(BIN)/fedlag compare

test: $(READY)
	@$(BIN)/pytest -n auto --dist worksteal

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy

check: lint types test

# Beside other simulators, which are installed into .benchmarks/; QUICK=1 only shows that everything runs.
benchmarks: $(READY)
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick,--readme)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("fedlag needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedlag and its pinned dependencies into $(VENV) (once, a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

# Flower with random kills for 100 rounds, about an hour: see tests/flower/soak.py.
soak: $(READY)
	@PYTHONPATH=tests $(BIN)/python -m flower.soak --rounds $(or $(ROUNDS),100)

clean:
	rm -rf $(VENV)
