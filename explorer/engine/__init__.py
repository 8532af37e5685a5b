"""Engines behind one protocol: what samples tokens, and the proof of what it reports."""
