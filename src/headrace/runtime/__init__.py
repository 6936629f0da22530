"""The doing half: asyncio, sockets, stores and metrics carry out what `core` decides and `wire` translates."""
