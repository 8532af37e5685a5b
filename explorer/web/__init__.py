"""The browser UI: documented page contexts, server-rendered pages and JSON twins."""
