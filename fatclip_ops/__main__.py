"""`python -m fatclip_ops`: what runs here, and why."""

from .diagnostics import show_config

print(show_config())
