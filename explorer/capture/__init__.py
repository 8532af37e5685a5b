"""The life of a call: admission, the sans-IO exchange, and the ASGI routes that drive it."""
