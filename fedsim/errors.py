"""The one error that is meant for the person at the keyboard."""


class InputError(ValueError):
    """A one-line message that names what was given and what would be right; the command line turns it into exit code 2."""
