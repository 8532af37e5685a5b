"""Programs of others that use our HTTP API, and the thin client they share."""
