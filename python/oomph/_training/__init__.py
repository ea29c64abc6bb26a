"""The library for training loops; `oomph` exports its public names."""
