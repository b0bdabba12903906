"""The stages of a synthesis, one module each, in the order of :data:`mlxplatform.memory.runs.STAGES`.

Each is a function of :class:`~mlxplatform.memory.synthesis.Synthesis`: it finds its work by state, in
chronological order, so that it can be run alone, again, or after a crash, and the newest statement wins.
"""
