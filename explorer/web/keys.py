"""The keyboard shortcuts, once: the help page, the dialog and a test read this list.

Owns: which key does what, in words. `static/explorer.js` registers the same keys.
"""

from __future__ import annotations

from explorer.web.contexts import Key

KEYS: tuple[Key, ...] = (
    Key(("j", "k"), "next / previous turn"),
    Key(("→", "←"), "next / previous token"),
    Key(("n", "N"), "next / previous outlier (−logp of 4 nats or more)"),
    Key(("]", "["), "next / previous branch"),
    Key(("m",), "mask hatch on / off"),
    Key(("1", "2", "3"), "colour by logprob, rank, mask"),
    Key(("g",), "the rollout's group"),
    Key(("c",), "in the turn tree: a turn beside the one it parts from"),
    Key(("?",), "this list"),
    Key(("Esc",), "close this list or the token sheet"),
)
