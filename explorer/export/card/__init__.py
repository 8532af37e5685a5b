"""The card of a dataset: what was measured, and nothing else."""
