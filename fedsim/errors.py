"""The errors of fedsim that are meant for the user, each with the exit code of the command."""


class InputError(ValueError):
    """A request that cannot be met; the message is one line with what is wrong and what would be right."""

    exit_code = 2


class RunError(Exception):
    """A run that cannot begin or resume; the message is one line, and what is on disk stays as it is."""

    exit_code = 1


class ClientError(RuntimeError):
    """A client's local work raised or its worker died; the message names the clients and carries the traceback."""

    exit_code = 1


class StoppedError(Exception):
    """The user stopped the command; a run has everything up to its last whole round on disk."""

    exit_code = 130


class RankError(RunError):
    """Another rank of torchrun is gone."""
