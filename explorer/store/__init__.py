"""The durable record: one interface, and DuckDB behind it.

`DuckDBStore(path, StoreOptions(...))` opens a file; `backup`, `migrate` and `compact`
are in `maintenance`.
"""

from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.store.interface import Store
from explorer.store.rows import override_of, override_payload

__all__ = ["DuckDBStore", "Store", "StoreOptions", "override_of", "override_payload"]
