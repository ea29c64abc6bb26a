//! The catalogue of GPUs: what each one holds, and where each figure comes from.
