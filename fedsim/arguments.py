"""The command line's parser."""

import argparse
from typing import NoReturn

from .errors import InputError


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line; the usage is one --help away."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")
