"""The deciding half: facts in, orders out, without clock, log, IO or chance of its own."""
