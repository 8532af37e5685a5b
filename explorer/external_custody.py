"""External custody put together from the settings. Wiring only.

Owns: what external custody demands of the settings, the ledger that is open, where its control
token is read.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorer.capture.external import Gatekeeper
from explorer.capture.manifest_route import ManifestRoute
from explorer.custody.conformance import ConformanceError, assert_golden_vectors
from explorer.custody.errors import LedgerError
from explorer.custody.ledger import CaptureLedger
from explorer.errors import ConfigurationError
from explorer.settings import PREFIX, Settings
from explorer.store.custody_ledger import DuckDBLedger, ledger_path, open_ledger


class ExternalCustody:
    """The ledger of one server with what reads and writes it."""

    def __init__(self, ledger: CaptureLedger, token: str) -> None:
        self._ledger = ledger
        self.gatekeeper = Gatekeeper(ledger)
        self.route = ManifestRoute(ledger, token)

    @classmethod
    def of(cls, settings: Settings, environ: Mapping[str, str]) -> ExternalCustody | None:
        """As the settings say; None where this server keeps the tokens, or only shows.

        Raises:
            ConfigurationError: external custody cannot work so.
        """
        if settings.custody != "external" or settings.read_only:
            return None
        if not settings.engine.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{PREFIX}CUSTODY=external needs a worker that keeps tokens: set "
                f"{PREFIX}ENGINE to its address, not to {settings.engine!r} (the reference "
                "worker: python -m explorer.integrations.nemo_gym)"
            )
        if settings.top_logprobs:
            raise ConfigurationError(
                f"{PREFIX}CUSTODY=external keeps no logprobs here: leave "
                f"{PREFIX}TOP_LOGPROBS at 0"
            )
        if settings.token_in:
            raise ConfigurationError(
                f"{PREFIX}CUSTODY=external knows no ids to continue a prompt with: leave "
                f"{PREFIX}TOKEN_IN off"
            )
        token = _token(settings, environ)
        try:
            assert_golden_vectors()
            ledger = open_ledger(settings.custody_ledger or ledger_path(settings.store))
        except (ConformanceError, LedgerError) as error:
            raise ConfigurationError(f"external custody cannot start: {error}") from error
        return cls(ledger, token)

    def close(self) -> None:
        """Lets go of the ledger."""
        if isinstance(self._ledger, DuckDBLedger):
            self._ledger.close()


def _token(settings: Settings, environ: Mapping[str, str]) -> str:
    name = settings.nemo_gym_control_token_env
    token = environ.get(name, "")
    if not token or not token.isascii() or not token.isprintable() or token != token.strip():
        raise ConfigurationError(
            f"{PREFIX}CUSTODY=external needs a control token: set {name} to a long random text "
            "of printable ASCII (for example from `openssl rand -hex 32`), or name another "
            f"variable with {PREFIX}NEMO_GYM_CONTROL_TOKEN_ENV"
        )
    return token
