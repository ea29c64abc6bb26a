//! Rules that find GPU memory bugs in Python training code.
