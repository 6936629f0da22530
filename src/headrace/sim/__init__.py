"""The modelled world: the real scheduler on virtual time, before engines that are a formula.

`engine` is a continuous-batching engine, `world` hands facts to a policy and carries out its orders, `scenarios` are
the questions asked, `measures` the answers. Nothing here waits, and a seed repeats a run exactly.
"""
