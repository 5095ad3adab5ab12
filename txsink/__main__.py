"""`python -m txsink`: the command `txsink`.

Promises: what `txsink.cli.main.main` does, with its exit codes.
Relies on: `cli`.
Does not promise: anything to who imports it.
"""

from __future__ import annotations

from txsink.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
