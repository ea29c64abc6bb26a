"""What `oomph run` puts beside a script: it records memory, facts and outcomes."""
