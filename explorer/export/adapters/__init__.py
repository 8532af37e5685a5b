"""Other forms of the same rollouts, for readers that want their own; each beside the record."""
