"""Every error a caller may have to catch, with the status and code it is shown as.

    ExplorerError
      RequestRefused       a request that must not be retried
        UnknownKey         401  no rollout has this capture key
        RolloutClosed      400  the rollout is sealed (403 on messages)
        BudgetSpent        400  the rollout's budget is used up (403 on messages)
        ContextOverflow    400  the prompt is longer than the rollout's context budget
        BadRequest         400  the body is not a valid request
        BodyTooLarge       413  over a named setting
        NotFound           404  no such object
        UpgradeUnsupported 426  websockets are not spoken here
        NotTrainable       409  with the verdict's reasons
        RescoringRefused   409  the engine would be compared with other weights, or unlike
        SecretsUndecided   409  what looks like a secret waits for a person, or is withheld
        QueryFailed        422  an SQL query, in the database's words
        AccessDenied       403  host, origin, role, scope or grant
          SignInNeeded     401  nobody is signed in
          CredentialsRefused 401  a token that is wrong, ended or taken back
          SignInFailed     403  signing in with a provider came to nothing
          GrantNeeded      403  no grant that stands
          AddressRefused   403  an address that this server does not reach
      UpstreamFailed       the engine did not answer as it must
        EngineUnavailable  502  no connection, or the engine died
        EngineTimeout      504  no reply in time
        EngineMalformed    502  a reply that cannot be read
        RemoteFailed       502  a provider or the Hub did not answer as it must
      PublishFailed        502  a dataset could not be published; the message says what to do
        HubNameInvalid     422  no such name can be
        HubUnauthorised    401  the Hub takes no such token, or none was given
        HubForbidden       403  the token may not do that
        HubGated           403  behind a gate
        HubNotFound        404  not there, or not for this token
        HubConflict        409  something else is there
          HeadMoved        409  somebody else published meanwhile
        HubRateLimited     429  too many requests, for longer than was waited
        HubUnavailable     503  no answer of use after several tries
        HubRefused         422  the Hub says why
        NothingToPublish   409  every rollout was left out
        PublishStopped     409  somebody stopped it
      BodyTooSlow          408  a request body that did not arrive in time
      CapacityReached      429  try again later
        RateLimited        429  too many requests of one address or person
      PublicAddressDead    503  nobody reaches this server by its public address
      StoreFailed          503  the record could not be made durable
        StoreLocked             the file is in use by another process
        StoreDamaged            the file cannot be opened as it is
        StoreReadOnly      403  the store is open for reading only
      RecordInconsistent   500  the stored parts of a call do not fit together
      ConfigurationError   the settings cannot work; the message says what to change

Findings are data (`records.Finding`), never exceptions.

Size: one list, so that nobody has to look in two places for what may be raised.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ExplorerError(Exception):
    """Base of all of ours; `code` is stable and documented, `status` is HTTP."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class RequestRefused(ExplorerError):
    status = 400
    code = "refused"


class UnknownKey(RequestRefused):
    status = 401
    code = "unknown_key"


class RolloutClosed(RequestRefused):
    code = "rollout_closed"


class BudgetSpent(RequestRefused):
    code = "budget_exhausted"


class ContextOverflow(RequestRefused):
    """`details` hold ``prompt_tokens`` and ``limit_tokens``."""

    code = "context_length_exceeded"


class BadRequest(RequestRefused):
    code = "bad_request"


class InvalidValue(RequestRefused):
    status = 422
    code = "invalid_value"


class BodyTooLarge(RequestRefused):
    status = 413
    code = "body_too_large"


class BodyTooSlow(ExplorerError):
    status = 408
    code = "body_too_slow"
    retryable = True


class UnsupportedEncoding(RequestRefused):
    status = 415
    code = "unsupported_encoding"


class NotFound(RequestRefused):
    status = 404
    code = "not_found"


class UpgradeUnsupported(RequestRefused):
    status = 426
    code = "upgrade_unsupported"


class EngineSetUpWrong(RequestRefused):
    status = 409
    code = "engine_set_up_wrong"


class RolloutOpen(RequestRefused):
    status = 409
    code = "rollout_open"


class ExternalCustodyUnsupported(RequestRefused):
    """A call that a worker with tokens of its own could not acknowledge."""

    code = "external_custody_unsupported"


class NotTrainable(RequestRefused):
    status = 409
    code = "not_trainable"


class RescoringRefused(RequestRefused):
    """What the engine would say now cannot be compared with what it said when sampling."""

    status = 409
    code = "rescoring_refused"


class SecretsUndecided(RequestRefused):
    """A file would hold what looks like a secret, and nobody let it go."""

    status = 409
    code = "secrets_undecided"


class QueryFailed(RequestRefused):
    """An SQL query has no answer: the database's words, or which limit ended it."""

    status = 422
    code = "query_failed"


class AccessDenied(RequestRefused):
    status = 403
    code = "access_denied"


class HostRefused(AccessDenied):
    status = 421
    code = "host_refused"


class AdminTokenNeeded(AccessDenied):
    status = 401
    code = "admin_token_needed"


class SignInNeeded(AccessDenied):
    """Nobody is signed in, and what was asked for needs somebody who is; see `/sign-in`."""

    status = 401
    code = "sign_in_needed"


class CredentialsRefused(AccessDenied):
    """A token that is wrong, ended or taken back."""

    status = 401
    code = "credentials_refused"


class SignInFailed(AccessDenied):
    """Signing in with a provider came to nothing; `why` is one word for the audit log."""

    code = "sign_in_failed"

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class RoleNeeded(AccessDenied):
    """It takes a role that the caller has not; an operator can give it."""

    code = "role_needed"


class ScopeNeeded(AccessDenied):
    """The API token was not made for this; make one that is at `/account`."""

    code = "scope_needed"


class GrantNeeded(AccessDenied):
    """It takes a grant, and the caller holds none that stands; ask at `/grants/new`."""

    code = "grant_needed"


class NoRule(AccessDenied):
    """The route has no access rule yet, so nobody may use it: a fault of the program."""

    code = "no_rule"


class AddressRefused(AccessDenied):
    """An address that this server does not reach, such as one on a private network."""

    code = "address_refused"


class UpstreamFailed(ExplorerError):
    status = 502
    code = "upstream_failed"
    retryable = True


class EngineUnavailable(UpstreamFailed):
    code = "engine_unavailable"


class EngineTimeout(UpstreamFailed):
    status = 504
    code = "engine_timeout"


class EngineMalformed(UpstreamFailed):
    code = "engine_malformed"


class EngineRefusedStream(UpstreamFailed):
    """The engine answered a stream with a whole reply of another status: `reply`."""

    code = "engine_refused_stream"

    def __init__(self, message: str, reply: Any) -> None:
        super().__init__(message)
        self.reply = reply


class RemoteFailed(UpstreamFailed):
    """A sign-in provider, the Hub or another address that was asked gave no usable answer."""

    code = "remote_failed"


class PublishFailed(ExplorerError):
    """A dataset could not be published, or not taken away; the message says what to do."""

    status = 502
    code = "publish_failed"


class HubNameInvalid(PublishFailed):
    """Nothing can have this name; nothing was exported. The message spells the rule out."""

    status = 422
    code = "hub_name_invalid"


class HubUnauthorised(PublishFailed):
    """The Hub takes no such token, or it needs one and none was given."""

    status = 401
    code = "hub_unauthorised"


class HubForbidden(PublishFailed):
    """The token may not do that: it lacks `contribute-repos` or `write`, or its owner does."""

    status = 403
    code = "hub_forbidden"


class HubGated(PublishFailed):
    """It is behind a gate: its owner decides who may read it, and has not let this one in."""

    status = 403
    code = "hub_gated"


class HubNotFound(PublishFailed):
    """It is not there, or the token may not see it; the Hub does not tell which."""

    status = 404
    code = "hub_not_found"


class HubConflict(PublishFailed):
    """Something else is there, and nothing is written over."""

    status = 409
    code = "hub_conflict"


class HeadMoved(HubConflict):
    """Somebody else published there meanwhile; nothing was changed. Plan again and retry."""

    code = "hub_head_moved"
    retryable = True


class HubRateLimited(PublishFailed):
    """Too many requests for longer than was waited; publish again later, it goes on."""

    status = 429
    code = "hub_rate_limited"
    retryable = True


class HubUnavailable(PublishFailed):
    """No answer of use after several tries; publish again later, it goes on."""

    status = 503
    code = "hub_unavailable"
    retryable = True


class HubRefused(PublishFailed):
    """The Hub does not take what was sent; the message has its words."""

    status = 422
    code = "hub_refused"


class NothingToPublish(PublishFailed):
    """Every rollout was left out; the dry run says why."""

    status = 409
    code = "nothing_to_publish"


class PublishStopped(PublishFailed):
    """It was stopped on purpose; what was uploaded is used by the next try."""

    status = 409
    code = "publish_stopped"
    retryable = True


class CapacityReached(ExplorerError):
    status = 429
    code = "capacity_reached"
    retryable = True


class RateLimited(CapacityReached):
    """Too many requests of one address or person; `Retry-After` says when to go on."""

    code = "rate_limited"


class WeightsSyncing(CapacityReached):
    """New weights are being loaded and the call waited as long as it may; try again."""

    code = "weights_syncing"


class EngineNotTold(ExplorerError):
    """The engine did not take a step of a weight update; the fence stays shut."""

    status = 502
    code = "engine_not_told"
    retryable = True


class PublicAddressDead(ExplorerError):
    """The public address does not lead to this server, so harnesses could not reach it."""

    status = 503
    code = "public_address_dead"
    retryable = True


class StoreFailed(ExplorerError):
    status = 503
    code = "store_failed"
    retryable = True


class StoreLocked(StoreFailed):
    code = "store_locked"
    retryable = False


class StoreDamaged(StoreFailed):
    code = "store_damaged"
    retryable = False


class StoreReadOnly(StoreFailed):
    """The server shows a store and records nothing."""

    status = 403
    code = "read_only"
    retryable = False


class ConfigurationError(ExplorerError):
    code = "configuration_error"


class RecordInconsistent(ExplorerError):
    """The stored parts of a call (delta, parent, lengths) do not fit together."""

    code = "record_inconsistent"
