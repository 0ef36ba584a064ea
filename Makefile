# Everything runs in a virtual environment of its own; a stamp says that it is up to date.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Without compiled files, every process of the tests would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo browser test test-fast test-long lint bench clean

demo: $(STAMP)
	$(BIN)/fedpca demo

# More workers than cores, since tests of federations mostly wait; threads of BLAS would only be in each
# other's way. The order is that of tests/conftest.py.
test: export OPENBLAS_NUM_THREADS := 1
test: $(STAMP) browser
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not long" --durations=25 \
		--cov --cov-report=term-missing:skip-covered

# Reports and the live page are looked at in a real browser. Without one, and without the means to
# install it, these tests are skipped and say so.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium" \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends \
		chromium fonts-dejavu-core >/dev/null; } || true

test-fast: export OPENBLAS_NUM_THREADS := 1
test-fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not process and not slow and not long" -q

# What `make test` shows with few random draws, with many.
test-long: export OPENBLAS_NUM_THREADS := 1
test-long: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "long or hypothesis" --hypothesis-profile=long

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/exact.py
	$(BIN)/python benchmarks/many_sites.py
	$(BIN)/python benchmarks/streaming.py
	$(BIN)/python benchmarks/personalized.py
	$(BIN)/python benchmarks/robust.py
	$(BIN)/python benchmarks/flower.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/busy.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/alternatives.py
	$(BIN)/python benchmarks/scaling.py

$(STAMP): pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
