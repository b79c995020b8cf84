"""The plays of Project Gutenberg as one text per (play, role), by the rules of the LEAF benchmark."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80  # characters read to predict the next one
MIN_SPEECHES = 3  # LEAF leaves out roles with two speeches or fewer

# Stage directions, also the few whose first bracket is a brace. The bound keeps an unclosed one from eating an act.
_DIRECTION = re.compile(r"[\[{][^\[\]{}]{0,800}[\]}]")
_OUTSIDE = re.compile("[^" + re.escape(VOCABULARY) + "]|\n")
# The list of persons ends where the play begins.
_BEGIN = re.compile(r"^\s*(ACT (I|1|FIRST)\b|Act I\b|SCENE\b|INDUCTION\b|(THE )?PROLOGUE\b)", re.MULTILINE)
_HEADING = re.compile(r"(ACT|Act|SCENE|Scene|Song|SONG|THE END|FINIS)\b")
# `FIRST LORD.`, `MRS. PAGE.`, `1 KEEPER.`, `PRINCE OF Morocco.`; A Midsummer Night's Dream has `THESEUS`, with no stop.
_UPPER = re.compile(r"(?=.*[A-Z]{2})([A-Z0-9][A-Z0-9 .,'&-]*|[A-Z]{2,}( \w+){1,3}\.)")
_UPPER_INLINE = re.compile(r"([A-Z0-9][A-Z ]{2,})\. +(?=.*[a-z])(\S.*)")
# `Ham.`, `Lady Capulet.`: three plays write their speakers so.
_MIXED = re.compile(r"[A-Z][A-Za-z]*( [A-Za-z]+){0,3}\.")


def _paragraphs(text: str) -> list[list[str]]:
    """The play as lists of lines, stage directions and the list of persons left out."""
    text = _DIRECTION.sub("", text)
    begin = _BEGIN.search(text)
    lines = text[begin.start() if begin else 0 :].splitlines()
    paragraphs: list[list[str]] = [[]]
    for line in map(str.strip, lines):
        if line:
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [p for p in paragraphs if p]


def _speaker_marks(paragraphs: list[list[str]]) -> tuple[re.Pattern[str], set[str]]:
    """How this play marks a speaker, and the marks that have a speech right below them."""
    firsts = [p[0] for p in paragraphs if len(p) > 1 and not _HEADING.match(p[0])]
    upper, mixed = ([f for f in firsts if style.fullmatch(f)] for style in (_UPPER, _MIXED))
    return (_UPPER, set(upper)) if 2 * len(upper) >= len(mixed) else (_MIXED, set(mixed))


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """Yields (speaker, speech) in the order of the play.

    A paragraph whose first line is a speaker's mark begins a speech; one without a mark continues it (a stage
    direction stood between them); a heading ends it.
    """
    paragraphs = _paragraphs(text)
    style, known = _speaker_marks(paragraphs)
    speaker, parts = "", list[str]()
    for first, *rest in paragraphs:
        inline = _UPPER_INLINE.fullmatch(first) if style is _UPPER else None
        if _HEADING.match(first):
            mark, said = "", []
        elif style.fullmatch(first) and (rest or first in known):
            mark, said = first, rest
        elif inline:
            mark, said = inline[1], [inline[2], *rest]
        else:
            parts += [first, *rest]
            continue
        if speaker and parts:
            yield speaker, "\n".join(parts)
        speaker, parts = " ".join(mark.upper().rstrip(".").split()), said
    if speaker and parts:
        yield speaker, "\n".join(parts)


def clean(text: str) -> str:
    """LEAF's text of a role: newlines and what is not in the vocabulary become spaces, runs of spaces one space."""
    return re.sub(" {2,}", " ", _OUTSIDE.sub(" ", text)).strip()


def roles(plays: Mapping[str, str]) -> dict[str, str]:
    """The text of every role with enough to say, by `PLAY/ROLE`, in the order of the plays' names and first entrances.

    Enough is three speeches, as in LEAF, and two windows: one to train on and one to test.
    """
    found: dict[str, str] = {}
    for play in sorted(plays):
        said: defaultdict[str, list[str]] = defaultdict(list)
        for speaker, speech in speeches(plays[play]):
            said[speaker].append(speech)
        for speaker, parts in said.items():
            text = clean("\n".join(parts))
            if len(parts) >= MIN_SPEECHES and len(text) >= WINDOW + 2:
                found[f"{play}/{speaker}"] = text
    return found
