"""Measuring any OpenAI-shaped endpoint under several users at once: who waits, who is served, who is refused.

It looks at the endpoint from outside, with a client of its own, so that gateways and bare engines can be compared.
"""
