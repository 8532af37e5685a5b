"""What is logged, where, and what never is. Wiring only.

Owns: the configuration of logging.
"""

from __future__ import annotations

from typing import Any


def logging_config(level: str) -> dict[str, Any]:
    """Logging to standard error, secrets masked, no access lines (they would hold paths
    and queries of people), other libraries' chatter only when debugging."""
    chosen = level.upper()
    quiet = chosen if chosen == "DEBUG" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"secrets": {"()": "explorer.access.secrets.MaskSecrets"}},
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "plain",
                "filters": ["secrets"],
            }
        },
        "root": {"level": quiet, "handlers": ["stderr"]},
        "loggers": {
            "explorer": {"level": chosen},
            "uvicorn": {"level": quiet, "handlers": [], "propagate": True},
            "uvicorn.access": {"level": "ERROR", "handlers": [], "propagate": False},
        },
    }
