"""`python -m explorer` is `rollout-explorer`."""

from explorer.cli import main

main()
