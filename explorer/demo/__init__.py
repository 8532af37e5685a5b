"""A small real agent that fills a store through the proxy, so that every page has data."""
