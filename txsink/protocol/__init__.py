"""Which entry may be appended when, and what must have happened before: the life of a transaction.

    begin ──stage*──► prepare [preparing] ──► publish [resolving] ──► commit [resolving]
      │                  │
      │ forget           │ abort [resolving], unless its removals have begun (entry `publishing`) or it is published
      ▼                  ▼
    nothing           aborting ──► cleaned [recovery.finish_aborts]

What may be believed in each state:
    staged      files of a run that nobody names: durable, and seen by no reader; a sweep may take them.
    prepared    the entry names whole, durable files; any process can finish it or drop it.
    publishing  removals may have begun: only forward.
    committed   every file is there under its name, and the entry says so; only a rewind takes it back.
    aborting    nobody can publish it any more; its files may still be there.

Invariants (tests cite them by number):
    I1  multiset equality: what readers see = rows of committed epochs, each once.
    I2  an epoch is visible whole or not at all to log and Delta readers.
    I3  acknowledged means readable after any later fault, power cut included.
    I4  a writer's committed epochs grow (only a rewind, which says so in the log, goes back).
    I5  at most one commit per (writer, epoch).
    I6  every committed file exists with its recorded identity.
    I7  an entry's bytes never change, and a version is never used twice.
    I8  no file is deleted while a retained version or a pending transaction names it.
    I9  after recover and sweep: no orphan, no staged left-over.
    I10 a retired run: no commit and no delete after the claim that retired it.
    I11 an outcome is committed, not committed or unknown; unknown never deletes.
    I12 recovery twice = once; it may crash anywhere.
    I13 a torn or empty entry is never "empty log".
    I14 when faults stop, a commit succeeds within bounded retries.
    I15 other tables and writers are untouched.
    I16 same seed, same trace.
"""
