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
from txsink.protocol.outcome import Result
from txsink.reading.table import Table, open_table
from txsink.staging.epoch_stager import StagedFile, StageOptions
from txsink.staging.stager import Stager
from txsink.two_phase.file_sink import ParquetFileSink
from txsink.two_phase.sink import TwoPhaseCommitSink
from txsink.writing.opening import open_writer, write
from txsink.writing.transaction import Transaction
from txsink.writing.writer import Writer

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
    "StageOptions",
    "StagedFile",
    "Stager",
    "Table",
    "Transaction",
    "TwoPhaseCommitSink",
    "TxsinkError",
    "UnavailableError",
    "Writer",
    "__version__",
    "open_table",
    "open_writer",
    "write",
]
