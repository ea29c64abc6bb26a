"""The pytest plugin: GPU tests on a virtual GPU (docs/testing.md)."""
