"""Token custody: digests that other systems can recompute, byte for byte."""
