#!/usr/bin/env bash
# Installs the Rust that Cargo.toml asks for, with components and, after `--target`, a target: release/rust.sh clippy --target aarch64-unknown-linux-gnu
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
components=()
while [ $# -gt 0 ] && [ "$1" != --target ]; do components+=(--component "$1"); shift; done
rustup toolchain install "$version" --profile minimal --no-self-update "${components[@]}" "$@"
rustup default "$version"
