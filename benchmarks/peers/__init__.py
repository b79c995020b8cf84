"""The sides of the comparison: scripts that run as processes of their own, each in its own environment."""
