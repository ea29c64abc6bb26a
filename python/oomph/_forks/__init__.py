"""Scripts that are forked from a process that has imported torch, where a command runs many of them.

Each run of `oomph fit` would start Python and import torch and the recorder: seconds of a core, where many scripts
need less than one. `server.py` has imported them and never used CUDA. The process that the command
starts (`oomph.launch`) asks the server to fork instead, and then stands for the forked process (`client.py`).
"""
