"""External custody: a worker that stages tokens in storage of its own, and what reads them.

The proxy keeps coordinates without tokens; a framework reads them with `control`, fetches the
tokens from the worker's storage, and verifies with `explorer.custody.rebuild`.
"""
