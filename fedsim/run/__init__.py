"""Runs that survive: a directory with config, journal and checkpoints, from which a killed run resumes bit for bit."""
