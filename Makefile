# Two commands for a newcomer: `make demo` and `make test`. Each makes .venv if it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_OPTIONS ?= -n 2 --dist worksteal

.PHONY: demo test test-exhaustive test-all check format clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/peers: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[peers]" || \
		echo "kenlm cannot be built here; tests that compare with it are skipped"
	touch $@

demo: $(VENV)/installed
	@BIN=$(BIN) sh scripts/demo.sh

test: $(VENV)/peers
	$(BIN)/python -m pytest $(TEST_OPTIONS) -m "not exhaustive"

test-exhaustive: $(VENV)/peers
	$(BIN)/python -m pytest $(TEST_OPTIONS) -m exhaustive

test-all: test test-exhaustive

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
