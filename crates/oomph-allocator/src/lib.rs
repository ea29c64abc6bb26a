//! The CUDA caching allocator of PyTorch, simulated.
