"""Proof for programs that must write exactly once: faults, crash states, schedules, and a checker of what is left.

Promises: what stands here works on any `Store`, needs the base install only, and is never imported by the engine.
Relies on: the engine's seams, and those only: a `Store`, clock and ids that are handed in.
Does not promise: an interface as stable as `txsink` itself; changes stand in the change log.
"""
