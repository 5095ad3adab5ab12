"""What a fault run planned and what came about."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import ledger


@dataclass
class Tally:
    """The account of one part on one store; `skipped`: the classes that cannot be tried here, and why."""

    part: str
    store: str = "local disk"
    planned: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.failures and self.planned == self.delivered

    def tell(self, **counts: int) -> None:
        """For the ledger. Counts beside faults are named with `_` for each blank."""
        faults = {fault: (count, self.delivered[fault]) for fault, count in sorted(self.planned.items())}
        ledger.report(self.part, self.store, faults, counts, failures=len(self.failures), skipped=self.skipped)
