"""`python -m tests.hub`: the local Hub, to try things by hand.

    python -m tests.hub --port 8090
    HF_ENDPOINT=http://127.0.0.1:8090 HF_HUB_DISABLE_XET=1 rollout-explorer publish ...

It keeps everything in memory and forgets it at its end.
"""

from __future__ import annotations

import argparse
import time

from tests.hub.server import LocalHub


def main() -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.hub", description=__doc__)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--user", default="ada", help="whose account there is")
    parser.add_argument("--org", action="append", default=[], help="where they may write")
    wanted = parser.parse_args()
    with LocalHub(wanted.port) as hub:
        try:
            print(f"The local Hub: {hub.url}")
            for scope in ("write", "contribute-repos", "read"):
                value = hub.people.add(wanted.user, scope, tuple(wanted.org))
                print(f"  a token of {wanted.user} with {scope}: {value}")
            print(f"  somebody else's: {hub.people.add('bob')}", flush=True)
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print("It ends, and forgets everything.")


if __name__ == "__main__":
    main()
