"""The admin API: instances, breakers, what goes on, dead letters. `door` is what the front door mounts."""
