# Every target sets up .venv by itself; a second run does no set-up work again.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
OUT ?= runs/lenet5-mnist-mini
# The Pythons of `make test-versions`.
OLDEST ?= python3.10
NEWEST ?= python3.13

.PHONY: train test test-all test-versions test-minima test-newest lint types dist-check notebooks site bench torture format clean

train: $(READY)
	$(BIN)/pyro-bnn train lenet5-mnist-mini --out $(OUT)

# two files at a time, one thread each
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-all: $(READY)
	$(BIN)/python -m pytest -m ""

# a subset on the versions that pyproject.toml promises, each in an environment of its own
test-versions: test-minima test-newest

test-minima: $(READY)
	$(BIN)/python .ci/versions.py minima --python $(OLDEST)

test-newest: $(READY)
	$(BIN)/python .ci/versions.py newest --python $(NEWEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# sdist -> wheel, installed elsewhere and imported from there
dist-check: $(READY)
	$(BIN)/python .ci/dist_check.py

# the documentation, into build/site/index.html; a dead link or a name without documentation stops it
site: $(READY)
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python website/check.py build/site

notebooks: $(READY)
	$(BIN)/python notebooks/execute.py

bench: $(READY)
	$(BIN)/python -m pip install --quiet -e ".[bench]"
	$(BIN)/python -m benchmarks --resume
	$(BIN)/python -m benchmarks.readme

# kills, crashes, full disks, runs started together, a soak; then damaged and hostile files: what is lost or believed
torture: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m torture --json docs/torture.json

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .venv-versions build dist *.egg-info
