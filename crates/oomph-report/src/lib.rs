//! How results are shown: terminal, JSON, HTML.
