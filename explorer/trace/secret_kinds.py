"""What looks like a secret: one table of rules, each beginning at a fixed piece of text.

Owns: the kinds, their names for people, and how one is matched at a place.
Must not know: where the text comes from, what is done with a match.

Every rule starts from a literal that is searched for in lower case, and every repetition
is bounded, so that hostile text costs time in proportion to its length. A rule matches
printable ASCII only: a match covers as many characters as bytes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

# Start and end of the secret itself, without the word that introduces it.
Found = tuple[int, int]
Matcher = Callable[[bytes, int], Found | None]

_FEWEST_DISTINCT = 4
_PEM_MOST = 16_000
_PEM_LETTERS = 40


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding.

    Attributes:
        title: how it is told to people: "looks like {title}".
        blocks: a person must decide before the rollout may be published, and it is hidden
            from readers; False for what is only counted.
    """

    name: str
    title: str
    blocks: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind is found: at each of `anchors` (lower case), `match` is tried."""

    kind: Kind
    anchors: tuple[bytes, ...]
    match: Matcher


def _pattern(regex: bytes, *, varied: bool = True) -> Matcher:
    """Matches `regex` at the anchor; its group 1, if it has one, is the secret. With
    `varied`, filler such as ``xxxxxxxx`` is no secret."""
    compiled = re.compile(regex)
    group = 1 if compiled.groups else 0

    def match(data: bytes, at: int) -> Found | None:
        found = compiled.match(data, at)
        if found is None:
            return None
        if varied and len(set(found.group(group)[-24:])) < _FEWEST_DISTINCT:
            return None
        return found.span(group)

    return match


_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(rb"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_NOT_ASCII = re.compile(rb"[^\t\n\r -~]")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]")
_PEM_TEXT = re.compile(rb"(?:[A-Za-z0-9+/=\s:,.-]|\\[nr])*")


def _private_key(data: bytes, at: int) -> Found | None:
    begin = _BEGIN.match(data, at)
    if begin is None:
        return None
    last = min(len(data), begin.end() + _PEM_MOST)
    stop = _NOT_ASCII.search(data, begin.end(), last)
    last = stop.start() if stop else last
    # Another key's end is not this one's: what lies between would be hidden with it.
    following = data.find(b"-----BEGIN", begin.end(), last)
    last = following if following >= 0 else last
    marker = data.find(b"-----END", begin.end(), last)
    end = _END.match(data, marker) if marker >= 0 else None
    if end is not None and end.end() <= last:
        until = end.end()
    else:
        rest = _PEM_TEXT.match(data, begin.end(), last)
        until = rest.end() if rest is not None else begin.end()
    body = _BASE64.findall(data[begin.end() : until])
    return (at, until) if len(body) >= _PEM_LETTERS else None


_ASSIGNED = re.compile(
    rb"(?:passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential"
    rb"|[_-]token|(?:auth|access)?token)"
    rb"(?:[_-]?(?:access|api|auth|shared|value|key|token|secret|plain|text|base64)){0,3}s?"
    rb"[\"'`\\]{0,8}[ \t]{0,4}(?::=|=>|==?|:)[ \t]{0,4}"
    rb"(?P<quote>[\"'`\\]{0,8})(?:b(?=[\"']))?(?P<value>[!-~]{8,256})",
    re.IGNORECASE,
)
_ENDS = re.compile(rb"[\s\"'`\\,;&<>(){}\[\]|]")
_NAME = re.compile(rb"[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_]\w*)*")
_LETTER, _DIGIT = re.compile(rb"[A-Za-z]"), re.compile(rb"[0-9]")
_PLAIN_WORDS = re.compile(rb"[a-z]+(?:[ _.-][a-z]+)*|[A-Z]+(?:[ _-][A-Z]+)*|[A-Z][a-z]+")


def _assigned(data: bytes, at: int) -> Found | None:
    """A value that a word such as `password` is given."""
    found = _ASSIGNED.match(data, at)
    if found is None:
        return None
    start, end = found.span("value")
    cut = _ENDS.search(data, start, end)
    end = cut.start() if cut else end
    quoted = bool(found.group("quote"))
    if not quoted:
        if data[end : end + 1] in (b"(", b"["):
            return None  # a call or a look-up, in code
        end = start + len(data[start:end].rstrip(b".:"))
    return (start, end) if _by_chance(data[start:end], quoted) else None


def _by_chance(value: bytes, quoted: bool) -> bool:
    """Whether a value looks drawn by chance or by a person, and not like code."""
    if len(value) < 8 or value[:1] in b"$<%{*#/~@" or value.startswith(b"token_id:"):
        return False
    if b"://" in value or value.isdigit() or _PLAIN_WORDS.fullmatch(value):
        return False
    if not _LETTER.search(value):
        return False
    has_digit = _DIGIT.search(value) is not None
    name = _NAME.fullmatch(value) is not None
    if name and (not has_digit or b"." in value or b"->" in value or b"::" in value):
        return False  # a variable or an attribute
    if not quoted and not has_digit:
        return False
    return _entropy(value) >= (2.5 if quoted else 2.75)


def _entropy(value: bytes) -> float:
    """Bits per byte, from how often each byte stands in it."""
    size = len(value)
    return -sum(n / size * math.log2(n / size) for n in Counter(value).values())


_URL = re.compile(rb"://[^\s/:@\"'<>\\]{0,64}:([^\s/@\"'<>\\]{3,128})@[A-Za-z0-9\[]")


def _url_password(data: bytes, at: int) -> Found | None:
    found = _URL.match(data, at)
    if found is None or not found.group(1).isascii():
        return None
    value = found.group(1)
    # A placeholder of a manual, or a variable.
    plain = value.lower().strip(b"<>{}$[]*") in (
        b"pass",
        b"password",
        b"pwd",
        b"passwd",
        b"xxx",
    )
    return None if plain or value[:1] in b"$<{*" else found.span(1)


_HEADER = re.compile(
    rb"(?:authorization|api-key)[\"'\\]{0,6}[ \t]{0,3}[:=,][ \t]{0,3}"
    rb"(?:b(?=[\"']))?[\"'\\]{0,6}"
    rb"(?:(?:bearer|basic|token)[ \t]{1,3})?([A-Za-z0-9._~+/=-]{12,4096})",
    re.IGNORECASE,
)
_SCHEME = re.compile(rb"bearer[ \t]{1,3}([A-Za-z0-9._~+/=-]{16,4096})", re.IGNORECASE)


def _credential(regex: re.Pattern[bytes]) -> Matcher:
    def match(data: bytes, at: int) -> Found | None:
        found = regex.match(data, at)
        if found is None or not _by_chance(found.group(1)[:256], quoted=False):
            return None
        return found.span(1)

    return match


_HOME = re.compile(rb"(?:/home/|/Users/|[A-Za-z]:\\{1,4}Users\\{1,4})[A-Za-z0-9][\w.-]{0,39}")


def _home(data: bytes, at: int) -> Found | None:
    start = at - 1 if data[at : at + 1] == b":" else at
    if start < 0:
        return None
    found = _HOME.match(data, start)
    return None if found is None else found.span()


OURS = Kind("rollout_explorer_key", "a key or token of Rollout Explorer")
OPENAI = Kind("openai_key", "an OpenAI key")
ANTHROPIC = Kind("anthropic_key", "an Anthropic key")
HUGGING_FACE = Kind("hugging_face_token", "a Hugging Face token")
GITHUB = Kind("github_token", "a GitHub token")
GITLAB = Kind("gitlab_token", "a GitLab token")
SLACK = Kind("slack_token", "a Slack token or webhook")
AWS = Kind("aws_key", "an AWS access key")
GOOGLE = Kind("google_key", "a Google API key or token")
STRIPE = Kind("stripe_key", "a Stripe key")
PACKAGES = Kind("registry_token", "a token of a package registry")
SERVICE = Kind("service_key", "a key of another well-known service")
JWT = Kind("json_web_token", "a JSON Web Token")
PRIVATE_KEY = Kind("private_key", "a private key")
AUTHORIZATION = Kind("authorization", "a credential of an Authorization header")
URL = Kind("url_password", "a password in an address")
ASSIGNED = Kind("assigned_secret", "a password or key that is assigned by name")
MANY = Kind("many", "one of more secrets than are listed one by one")
PATH = Kind("path", "a path with a person's name", blocks=False)

# The order counts: of two rules that match the same place, the first names the kind.
RULES: tuple[Rule, ...] = (
    Rule(
        OURS,
        (b"rxk_", b"rxa_", b"rxt_"),
        _pattern(rb"rx[kat]_[A-Za-z0-9_-]{16,200}", varied=False),
    ),
    Rule(ANTHROPIC, (b"sk-ant-",), _pattern(rb"sk-ant-[A-Za-z0-9_-]{16,200}")),
    Rule(
        OPENAI,
        (b"sk-",),
        _pattern(
            rb"sk-(?:proj|svcacct|admin|or-v1|test|live)-[A-Za-z0-9_-]{12,300}"
            rb"|(?<![A-Za-z0-9_-])sk-(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{16,300}"
        ),
    ),
    Rule(HUGGING_FACE, (b"hf_", b"api_org_"), _pattern(
        rb"hf_[A-Za-z0-9]{20,200}|hf_oauth_[A-Za-z0-9._-]{20,2000}|api_org_[A-Za-z0-9]{20,100}"
    )),
    Rule(
        GITHUB,
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        _pattern(rb"gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{20,255}"),
    ),
    Rule(GITLAB, (b"glpat-", b"gldt-", b"glrt-"), _pattern(rb"gl(?:pat|dt|rt)-[\w-]{16,255}")),
    Rule(
        SLACK,
        (b"xoxb-", b"xoxp-", b"xoxa-", b"xoxr-", b"xoxs-", b"xapp-"),
        _pattern(rb"(?:xox[abprs]|xapp)-[A-Za-z0-9-]{10,255}"),
    ),
    Rule(
        SLACK,
        (b"hooks.slack.com/",),
        _pattern(rb"hooks\.slack\.com/services/([A-Za-z0-9/]{20,100})"),
    ),
    Rule(
        AWS,
        (b"akia", b"asia"),
        _pattern(rb"(?<![A-Za-z0-9])A(?:KI|SI)A[0-9A-Z]{16}(?![A-Za-z0-9])"),
    ),
    Rule(
        GOOGLE,
        (b"aiza", b"ya29.", b"gocspx-"),
        _pattern(
            rb"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,2000}|GOCSPX-[A-Za-z0-9_-]{20,60}"
        ),
    ),
    Rule(
        STRIPE,
        (b"sk_live_", b"sk_test_", b"rk_live_", b"rk_test_", b"whsec_"),
        _pattern(rb"(?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9]{16,255}"),
    ),
    Rule(
        PACKAGES,
        (b"npm_", b"pypi-", b"dckr_pat_"),
        _pattern(
            rb"npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{40,1000}|dckr_pat_[A-Za-z0-9_-]{20,60}"
        ),
    ),
    Rule(
        SERVICE,
        (b"sg.", b"gsk_", b"xai-", b"r8_", b"nvapi-", b"lsv2_", b"pplx-", b"dop_v1_"),
        _pattern(
            rb"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"
            rb"|(?:gsk_|xai-|nvapi-|pplx-|dop_v1_|lsv2_(?:pt|sk)_)[A-Za-z0-9_-]{30,200}"
            rb"|(?<![A-Za-z0-9_])r8_[A-Za-z0-9]{37}"
        ),
    ),
    Rule(
        JWT,
        (b"eyj",),
        _pattern(
            rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,8192}"
            rb"\.[A-Za-z0-9_-]{0,2048}"
        ),
    ),
    Rule(PRIVATE_KEY, (b"-----begin ",), _private_key),
    Rule(AUTHORIZATION, (b"authorization", b"api-key"), _credential(_HEADER)),
    Rule(AUTHORIZATION, (b"bearer",), _credential(_SCHEME)),
    Rule(URL, (b"://",), _url_password),
    Rule(
        ASSIGNED,
        (
            b"password", b"passwd", b"passphrase", b"secret", b"api_key", b"apikey", b"api-key",
            b"access_key", b"accesskey", b"private_key", b"credential", b"_token", b"-token",
            b"authtoken", b"accesstoken", b"token=", b"token\":", b"token':", b"token: ",
            b"token\\\":",
        ),
        _assigned,
    ),
    Rule(PATH, (b"/home/", b"/users/", b":\\users\\", b":\\\\users\\\\"), _home),
)  # fmt: skip
KINDS: dict[str, Kind] = {rule.kind.name: rule.kind for rule in RULES} | {MANY.name: MANY}


def title_of(kind: str) -> str:
    """A kind in words; one of older rules by its name."""
    return KINDS[kind].title if kind in KINDS else kind.replace("_", " ")
