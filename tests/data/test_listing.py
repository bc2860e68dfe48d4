"""What is there of the data sets."""

from itertools import combinations, product
from pathlib import Path

import pytest

from tests.data.helpers import cifar_arrays, cifar_files, idx_arrays, write_cifar, write_idx
from trimtab.data import DATASETS, DataError, Entry, inventory, listing, load
from trimtab.data.sources import SOURCES


def entry(name: str, root: Path) -> Entry:
    return next(entry for entry in inventory(root) if entry.name == name)


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_nothing_there(tmp_path: Path) -> None:
    entries = inventory(tmp_path / "nowhere")
    assert {entry.name: entry.description for entry in entries} == DATASETS
    assert {entry.name for entry in entries if entry.fetchable} == set(SOURCES)
    assert {entry.name for entry in entries if entry.state == "built in"} == {"digits", "gaussian"}
    assert {entry.state for entry in entries} == {"built in", "absent"}
    assert all(entry.paths == () and entry.size == 0 for entry in entries)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_idx(tmp_path: Path, folder: str, zipped: bool) -> None:
    write_idx(tmp_path / folder, idx_arrays(), zipped=zipped)
    there = entry("fashion-mnist", tmp_path)
    assert (there.state, sorted(there.paths)) == ("present", files(tmp_path))
    assert there.size == sum(path.stat().st_size for path in files(tmp_path))
    load("fashion-mnist", tmp_path, check=False)
    there.paths[1].unlink()
    less = entry("fashion-mnist", tmp_path)
    assert (less.state, sorted(less.paths)) == ("incomplete", files(tmp_path))
    with pytest.raises(DataError, match="not found"):
        load("fashion-mnist", tmp_path, check=False)


def test_idx_files_of_two_folders_do_not_make_a_whole(tmp_path: Path) -> None:
    arrays = idx_arrays()
    labels = {"train-labels-idx1-ubyte": arrays.pop("train-labels-idx1-ubyte")}
    write_idx(tmp_path / "mnist", arrays, zipped=False)
    write_idx(tmp_path / "MNIST/raw", labels, zipped=True)
    assert entry("mnist", tmp_path).state == "incomplete"
    # Zipped or not is no matter, within a folder.
    write_idx(tmp_path / "mnist", labels, zipped=True)
    assert entry("mnist", tmp_path).state == "present"
    assert load("mnist", tmp_path, check=False).name == "mnist"


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("home", [".", "name", "itself"])
@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path: Path, name: str, version: str, home: str, archive: bool) -> None:
    place = tmp_path / name if home == "name" else tmp_path
    place.mkdir(exist_ok=True)
    made = write_cifar(place, name, version, cifar_files(name, version, cifar_arrays(name)), archive=archive)
    root = made if home == "itself" and not archive else tmp_path
    there = entry(name, root)
    assert (there.state, sorted(there.paths)) == ("present", files(tmp_path))
    assert there.size == sum(path.stat().st_size for path in files(tmp_path))
    assert len(load(name, root, check=False).test) == 4


CIFAR_FORMS = list(product((".", "cifar100"), ("binary", "python"), ("folder", "files", "archive")))
IDX_FORMS = list(product(("mnist", "MNIST/raw", "."), (True, False)))


@pytest.mark.parametrize("forms", list(combinations(CIFAR_FORMS, 2)))
def test_of_two_forms_it_is_the_one_that_is_loaded(tmp_path: Path, forms: tuple[tuple[str, str, str], ...]) -> None:
    written = {}
    for samples, (home, version, kind) in enumerate(forms, start=1):
        (tmp_path / home).mkdir(exist_ok=True)
        contents = cifar_files("cifar100", version, cifar_arrays("cifar100", samples))
        before = files(tmp_path)
        if kind == "files":
            for file, content in contents.items():
                (tmp_path / home / file).write_bytes(content)
        else:
            write_cifar(tmp_path / home, "cifar100", version, contents, archive=kind == "archive")
        written[samples] = sorted(set(files(tmp_path)).difference(before))
    loaded = len(load("cifar100", tmp_path, check=False).test)
    assert sorted(entry("cifar100", tmp_path).paths) == written[loaded]


@pytest.mark.parametrize("forms", list(combinations(IDX_FORMS, 2)))
def test_of_two_folders_it_is_the_one_that_is_loaded(tmp_path: Path, forms: tuple[tuple[str, bool], ...]) -> None:
    written = {}
    for samples, (folder, zipped) in enumerate(forms, start=1):
        before = files(tmp_path)
        write_idx(tmp_path / folder, idx_arrays(test=samples), zipped=zipped)
        written[samples] = sorted(set(files(tmp_path)).difference(before))
    loaded = len(load("mnist", tmp_path, check=False).test)
    assert sorted(entry("mnist", tmp_path).paths) == written[loaded]


def test_a_whole_archive_comes_before_a_part_of_a_folder(tmp_path: Path) -> None:
    made = cifar_files("cifar10", "binary", cifar_arrays("cifar10"))
    folder = write_cifar(tmp_path, "cifar10", "binary", made)
    (folder / "test_batch.bin").unlink()
    assert (entry("cifar10", tmp_path).state, len(entry("cifar10", tmp_path).paths)) == ("incomplete", 5)
    archive = write_cifar(tmp_path, "cifar10", "binary", made, archive=True)
    assert entry("cifar10", tmp_path).paths == (archive,)


def test_an_unfinished_download(tmp_path: Path) -> None:
    partial = tmp_path / ".cifar-100-binary.tar.gz.unfinished"
    partial.write_bytes(b"12345")
    there = entry("cifar100", tmp_path)
    assert (there.state, there.paths, there.size) == ("incomplete", (partial,), 5)


def test_imagefolder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        image = tmp_path / "imagenet" / "train" / f"class{number}" / "1.JPEG"
        image.parent.mkdir(parents=True)
        image.write_bytes(b"1234567")
    there = entry("imagefolder", tmp_path)
    assert (there.state, there.paths, there.size) == ("incomplete", (tmp_path / "imagenet" / "train",), 21)
    (tmp_path / "imagenet" / "val" / "class0").mkdir(parents=True)
    (tmp_path / "imagenet" / "val" / "class0" / "2.JPEG").write_bytes(b"1")
    there = entry("imagefolder", tmp_path)
    assert (there.state, there.size, there.fetchable) == ("present", 22, False)
    assert there.paths == (tmp_path / "imagenet" / "train", tmp_path / "imagenet" / "val")
    monkeypatch.setattr(listing, "MOST_COUNTED", 4)
    assert entry("imagefolder", tmp_path).size == 22
    monkeypatch.setattr(listing, "MOST_COUNTED", 3)
    assert entry("imagefolder", tmp_path).size is None


def test_the_folder_is_that_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "mnist", idx_arrays(), zipped=True)
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path))
    assert next(entry for entry in inventory() if entry.name == "mnist").state == "present"
