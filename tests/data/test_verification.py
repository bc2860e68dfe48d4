"""Files that are cut off are not called present, and checksums tell the official files from others."""

import gzip
import hashlib
from pathlib import Path

import pytest

from tests.data.helpers import cifar_arrays, cifar_files, idx_arrays, write_cifar, write_idx
from trimtab import cli
from trimtab.data import DataError, checksums, inventory, load, sources, verification, verify_files
from trimtab.data.wholeness import problem_of

FORMS = {
    "mnist, zipped": "mnist",
    "mnist, plain": "mnist",
    "cifar10, binary": "cifar10",
    "cifar10, python": "cifar10",
    "cifar10, binary archive": "cifar10",
    "cifar10, python archive": "cifar10",
    "cifar100, binary": "cifar100",
    "cifar100, python": "cifar100",
}


def write(root: Path, form: str) -> str:
    """Small whole files in a form; returns the data set's name."""
    name, _, rest = form.partition(", ")
    if name == "mnist":
        write_idx(root / "mnist", idx_arrays(), zipped=rest == "zipped")
    else:
        version = rest.split()[0]
        write_cifar(root, name, version, cifar_files(name, version, cifar_arrays(name)), archive="archive" in rest)
    return name


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def state(name: str, root: Path) -> str:
    return next(entry.state for entry in inventory(root) if entry.name == name)


def make_official(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files that are there be the official ones."""
    known = {(name, path.name.removesuffix(".gz")): md5(content_of(path)) for path in files(root)}
    monkeypatch.setattr(checksums, "CONTENT", known)
    monkeypatch.setattr(verification, "OTHERS", {path.name: md5(path.read_bytes()) for path in files(root)})
    monkeypatch.setattr(verification, "SOURCES", {**sources.SOURCES, name: ()})


def content_of(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_cut_off_is_not_present(form: str, tmp_path: Path) -> None:
    name = write(tmp_path, form)
    assert state(name, tmp_path) == "present"
    path = files(tmp_path)[0]
    whole = path.read_bytes()
    ends = () if "archive" in form else (len(whole) - 9, len(whole) - 1)  # an archive ends with nothing that is read
    for part in (0, 1, 5, 17, len(whole) // 7, len(whole) * 3 // 5, *ends):  # none at the end of a whole record
        path.write_bytes(whole[:part])
        entry = next(entry for entry in inventory(tmp_path) if entry.name == name)
        assert entry.state == "damaged", part
        (problem,) = entry.problems
        assert str(path) in problem and problem.endswith(".") and "\n" not in problem
        with pytest.raises(DataError):
            load(name, tmp_path, check=False)
        assert "damaged" in {file.state for file in verify_files(name, tmp_path)}
    path.write_bytes(whole)
    assert state(name, tmp_path) == "present"


def test_a_whole_file_that_looks_odd_is_read_before_it_is_blamed(tmp_path: Path) -> None:
    write(tmp_path, "mnist, zipped")
    path = files(tmp_path)[0]
    content = content_of(path)
    path.write_bytes(gzip.compress(content[:100]) + gzip.compress(content[100:]))  # ends with the length of a part
    assert problem_of("mnist", path) is None


@pytest.mark.parametrize("form", FORMS)
def test_checksums(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write(tmp_path, form)
    make_official(name, tmp_path, monkeypatch)
    found = verify_files(name, tmp_path)
    assert {file.state for file in found} == {"official"}
    assert sorted(file.sentence for file in found) == [str(path) for path in files(tmp_path)]
    path = files(tmp_path)[-1]
    data = bytearray(path.read_bytes())
    data[-20] ^= 1  # a pixel or a label
    path.write_bytes(data)
    (wrong,) = (file for file in verify_files(name, tmp_path) if file.state != "official")
    assert wrong.state == "damaged" and str(path) in wrong.sentence
    path.unlink()
    assert [file.state for file in verify_files(name, tmp_path)].count("missing") == (len(found) > 1)


def test_a_file_compressed_anew_is_official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "mnist, zipped")
    make_official("mnist", tmp_path, monkeypatch)
    path = files(tmp_path)[0]
    path.write_bytes(gzip.compress(content_of(path), 9, mtime=1))
    assert {file.state for file in verify_files("mnist", tmp_path)} == {"official"}


def test_mnist_in_the_root_is_no_damaged_fashion_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path, idx_arrays(), zipped=True)
    make_official("mnist", tmp_path, monkeypatch)
    assert {file.state for file in verify_files("mnist", tmp_path)} == {"official"}
    assert verify_files("fashion-mnist", tmp_path) == []
    assert cli.main(["data", "verify", "--data-root", str(tmp_path)]) == 0


def test_what_no_checksum_is_known_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "fashion-mnist", idx_arrays(), zipped=False)
    assert {file.state for file in verify_files("fashion-mnist", tmp_path)} == {"damaged"}  # so few of each class
    monkeypatch.setattr(verification, "load", lambda name, root: None)
    found = verify_files("fashion-mnist", tmp_path)
    assert {file.state for file in found} == {"unknown"} and "no checksum is known" in found[0].sentence
    assert [file.state for file in verify_files("digits", tmp_path)] == ["unknown"]
    assert verify_files("imagefolder", tmp_path) == []
    (tmp_path / "imagefolder" / "train" / "a").mkdir(parents=True)
    assert [file.state for file in verify_files("imagefolder", tmp_path)] == ["unknown"]
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        verify_files("mnsit", tmp_path)


def test_each_damaged_file_has_its_own_line(tmp_path: Path) -> None:
    write_idx(tmp_path, idx_arrays(), zipped=False)
    for path in files(tmp_path):
        path.write_text("nonsense")
    found = verify_files("fashion-mnist", tmp_path)
    assert [file.state for file in found] == ["damaged"] * 4
    assert {file.sentence.split()[0] for file in found} == {str(path) for path in files(tmp_path)}


def test_what_is_wrong_with_several_files_is_said_once(tmp_path: Path) -> None:
    write_idx(tmp_path, idx_arrays(), zipped=False)
    (wrong,) = verify_files("fashion-mnist", tmp_path)
    assert wrong.state == "damaged" and "train-images" in wrong.sentence and "train-labels" in wrong.sentence


def test_an_unfinished_download(tmp_path: Path) -> None:
    assert verify_files("cifar10", tmp_path) == []
    (tmp_path / ".cifar-10-binary.tar.gz.unfinished").write_bytes(b"12345")
    found = verify_files("cifar10", tmp_path)
    assert {file.state for file in found} == {"missing"} and found[-1].sentence.endswith("is an unfinished download")


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ["--data-root", str(tmp_path)]
    assert cli.main(["data", "verify", *root]) == 1
    error = capsys.readouterr().err
    assert error.startswith("trimtab: none of mnist, ")
    assert f"imagefolder was found in {tmp_path}; get one with: trimtab data fetch NAME --data-root" in error
    assert cli.main(["data", "verify", "mnist", *root]) == 1
    assert f"mnist was not found in {tmp_path}; get it with: trimtab data fetch mnist" in capsys.readouterr().err
    assert cli.main(["data", "verify", "imagefolder", *root]) == 1
    assert "imagefolder cannot be fetched: put images of your own" in capsys.readouterr().err
    assert cli.main(["data", "verify", "mnsit", *root]) == 2
    assert "did you mean 'mnist'" in capsys.readouterr().err
    assert cli.main(["data", "verify", "gaussian", *root]) == 0
    assert capsys.readouterr().out == "unknown   gaussian is drawn when it is used: it has no file to verify\n"
    write(tmp_path, "mnist, zipped")
    make_official("mnist", tmp_path, monkeypatch)
    assert cli.main(["data", "verify", "mnist", *root]) == 0
    assert all(line.startswith("official  ") for line in capsys.readouterr().out.splitlines())
    path = files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert cli.main(["data", "verify", *root]) == 1
    *official, remedy = sorted(capsys.readouterr().out.splitlines(), key=str.lower)
    damaged = official.pop(0)
    assert damaged.startswith("damaged ") and "cut off" in damaged and len(official) == 3
    assert remedy == f"To get mnist anew: trimtab data fetch mnist --data-root {tmp_path}"
    assert cli.main(["data", "list", *root]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mnist damaged" in shown and "cut off" in shown


def test_files_that_would_be_read_instead_are_to_be_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "cifar10, binary")
    folder = tmp_path / "cifar-10-batches-bin"
    assert cli.main(["data", "verify", "--data-root", str(tmp_path)]) == 1
    assert f"move {folder} away, then trimtab data fetch cifar10" in capsys.readouterr().out
