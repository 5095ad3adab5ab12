"""txsink: write Parquet exactly once. Stage per epoch, log the transaction, publish it atomically, recover."""

from txsink.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InternalError,
    InvalidRequestError,
    OutcomeUnknownError,
    TxsinkError,
    UnavailableError,
)
from txsink.sink import open_writer, write
from txsink.stage import StagedFile, StageOptions
from txsink.stager import Stager
from txsink.txn import Result, Transaction
from txsink.writer import Sink

__all__ = [
    "ConflictError",
    "CorruptError",
    "FencedError",
    "InternalError",
    "InvalidRequestError",
    "OutcomeUnknownError",
    "Result",
    "Sink",
    "StageOptions",
    "StagedFile",
    "Stager",
    "Transaction",
    "TxsinkError",
    "UnavailableError",
    "open_writer",
    "write",
]
