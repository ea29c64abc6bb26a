"""The Python side of the virtual GPU: its C interface, and values that scripts read."""
