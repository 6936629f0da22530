"""The scene `failover`: one of two engines is killed while it answers, and comes back."""
