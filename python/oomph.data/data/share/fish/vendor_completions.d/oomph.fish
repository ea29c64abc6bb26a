# fish loads this when `oomph` is completed for the first time; the command itself knows its options.
oomph completions fish 2>/dev/null | source
