"""For mkdocstrings: sets the examples of a docstring as Python sessions, which Markdown would take for quotations."""

import re
from typing import Any

import griffe

SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences every run of lines that begins with `>>>` and ends at an empty line."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for everything that may have a docstring."""
        if obj.docstring:
            obj.docstring.value = SESSION.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
