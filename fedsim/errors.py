"""The errors of fedsim that are meant for the person who runs it."""


class InputError(ValueError):
    """Something a person asked for cannot be done; the message is one line that says what and what would be right."""


class ClientError(RuntimeError):
    """A client's local work raised or its worker died; the message names the clients and carries the traceback."""
