"""The keyboard shortcuts, once: the help page, the dialog and a test read this list.

Owns: which key does what, in words. `static/explorer.js` registers the same keys, and
`static/lists.js` those of lists.
"""

from __future__ import annotations

from explorer.web.contexts import Key

KEYS: tuple[Key, ...] = (
    Key(("j", "k"), "next / previous turn, or row of a list"),
    Key(("Enter",), "in a list: open the row"),
    Key(("x",), "in a list: choose the row, to compare"),
    Key(("→", "←"), "next / previous token"),
    Key(
        ("n", "N"),
        "next / previous outlier (−logp of 4 nats or more; coloured by δ, |δ| of 0.7 or more)",
    ),
    Key(("]", "["), "next / previous branch"),
    Key(("m",), "mask hatch on / off"),
    Key(
        ("w",),
        "the least likely token of the rollout, on whatever branch; coloured by δ, the token "
        "furthest from the trainer",
    ),
    Key(("1", "2", "3", "4", "5"), "colour by logprob, rank, entropy, weight version, mask"),
    Key(("6", "7"), "colour by δ, ratio (where a trainer sent its logprobs)"),
    Key(("g",), "the rollout's group"),
    Key(("c",), "in the turn tree: a turn beside the one it parts from"),
    Key(("/",), "the search box of the page: a list's text box, or the search in this rollout"),
    Key(("?",), "this list"),
    Key(("Esc",), "close this list, a menu or the token sheet"),
)
