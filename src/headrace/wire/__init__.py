"""The translating half: bytes of clients and engines to the values of `headrace.model` and back."""
