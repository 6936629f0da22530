"""The scene `outage`: twelve requests share three model calls, then eight meet a provider that is down."""
