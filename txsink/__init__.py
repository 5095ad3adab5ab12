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
from txsink.file_sink import ParquetFileSink
from txsink.outcome import Result
from txsink.sink import open_writer, write
from txsink.stage import StagedFile, StageOptions
from txsink.stager import Stager
from txsink.table import Table, open_table
from txsink.two_phase import TwoPhaseCommitSink
from txsink.txn import Transaction
from txsink.writer import Sink

__version__ = "0.1.0"

__all__ = [
    "ConflictError",
    "CorruptError",
    "FencedError",
    "InternalError",
    "InvalidRequestError",
    "OutcomeUnknownError",
    "ParquetFileSink",
    "Result",
    "Sink",
    "StageOptions",
    "StagedFile",
    "Stager",
    "Table",
    "Transaction",
    "TwoPhaseCommitSink",
    "TxsinkError",
    "UnavailableError",
    "__version__",
    "open_table",
    "open_writer",
    "write",
]
