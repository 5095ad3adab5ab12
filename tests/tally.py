"""What a fault run planned and what came about, as one line for people and ledgers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """The account of one part on one store; `skipped`: why it could not be done here."""

    part: str
    store: str = "local"
    planned: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""
    seed: int | None = None

    @property
    def is_good(self) -> bool:
        return not self.failures and self.planned == self.delivered

    def line(self) -> str:
        """FAULTS and a JSON object."""
        faults = {kind: {"planned": n, "delivered": self.delivered[kind]} for kind, n in sorted(self.planned.items())}
        said: dict[str, Any] = {
            "part": self.part,
            "store": self.store,
            "faults": faults,
            "failures": len(self.failures),
        }
        said |= {"skipped": self.skipped} if self.skipped else {}
        said |= {"seed": self.seed} if self.seed is not None else {}
        return f"FAULTS {json.dumps(said)}"
