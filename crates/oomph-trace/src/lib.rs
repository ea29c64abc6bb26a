//! A GPU memory history in columns, with readers for every format it comes in.
