# Everything happens in .venv; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CARGO ?= cargo
SOURCES := $(shell find crates -name '*.rs' -o -name 'Cargo.toml' -o -path '*/data/*') Cargo.toml Cargo.lock pyproject.toml

.PHONY: build demo test test-matrix lint bench-accuracy clean

build: $(VENV)/.built

# Pinned; torch brings the CUDA build, which needs no GPU to be installed.
$(VENV)/.packages: requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -r requirements.txt
	touch $@

python/oomph/_vgpu/libcuda.so.1: $(SOURCES)
	$(CARGO) build --release -q -p oomph-vgpu
	mkdir -p $(@D)
	cp target/release/liboomph_vgpu.so $@

$(VENV)/.built: $(VENV)/.packages python/oomph/_vgpu/libcuda.so.1 $(SOURCES) $(wildcard python/oomph/*.py python/oomph/*/*.py)
	rm -rf dist
	$(BIN)/maturin build --release -q --out dist --interpreter $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
	touch $@
