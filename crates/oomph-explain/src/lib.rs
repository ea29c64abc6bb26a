//! From a memory history to the cause of an out-of-memory error.
