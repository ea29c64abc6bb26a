"""What levers share: where they step into a job, and how batches and losses are split."""
