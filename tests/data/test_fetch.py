"""Fetching, from a server on this machine that fails in the ways real ones do."""

import hashlib
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from urllib.request import Request

import pytest

from tests.data.helpers import cifar_arrays, cifar_files, idx_arrays, write_cifar, write_idx
from tests.data.server import Page, Server, serve
from trimtab.data import DataError, Progress, fetch, load
from trimtab.data.checksums import CONTENT, PACKED
from trimtab.data.fetch import _locked
from trimtab.data.remote import RemoteError, _Redirections
from trimtab.data.sources import OTHERS, SOURCES, Source

FILE = "cifar-10-binary.tar.gz"
OFFICIAL = bytes(range(256)) * 4000  # any: an archive is not opened when it is fetched
SIZE = len(OFFICIAL)
SOON = 0.3  # seconds


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as server:
        server.pages["/a"] = Page(OFFICIAL)
        yield server


def source(*urls: str, path: str = FILE, content: bytes = OFFICIAL) -> Source:
    return Source(path, urls, len(content), hashlib.md5(content).hexdigest())


def get(server: Server, root: Path, *paths: str, timeout: float = 10.0) -> list[Path]:
    """Fetch the one file from paths of the server."""
    urls = [f"{server.url}{path}" for path in paths or ("/a",)]
    return fetch("cifar10", root, timeout=timeout, sources={"cifar10": (source(*urls),)})


def fails(server: Server, root: Path, *paths: str, timeout: float = 10.0) -> str:
    """What fetching says, in one sentence; nothing is under the final name then."""
    with pytest.raises(DataError) as error:
        get(server, root, *paths, timeout=timeout)
    assert not (root / FILE).exists()
    told = str(error.value)
    assert "\n" not in told and told.endswith(".")
    return told


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def partial(root: Path) -> Path:
    return root / f".{FILE}.unfinished"


def begin(server: Server, root: Path, done: int = 1000) -> None:
    """Have the first bytes fetched."""
    server.pages["/a"].cut = done
    told = fails(server, root)
    assert f"closed after {done} of {SIZE} bytes" in told
    assert told.endswith(f"; the same command goes on where it stopped, at {done} of {SIZE} bytes.")
    assert partial(root).read_bytes() == OFFICIAL[:done]
    server.pages["/a"].cut = None
    server.requests.clear()


def arrived(root: Path) -> None:
    """The file is there, whole, and nothing besides."""
    assert (root / FILE).read_bytes() == OFFICIAL
    assert names(root) == [FILE]


@pytest.mark.parametrize("length", [True, False])
def test_whole(tmp_path: Path, server: Server, length: bool) -> None:
    server.pages["/a"].length = length
    steps: list[Progress] = []
    one = {"cifar10": (source(f"{server.url}/a"),)}
    assert fetch("cifar10", tmp_path / "new", report=steps.append, sources=one) == [tmp_path / "new" / FILE]
    arrived(tmp_path / "new")
    assert (steps[0], steps[-1]) == (Progress(FILE, 0, SIZE), Progress(FILE, SIZE, SIZE))
    assert [step.done for step in steps] == sorted({step.done for step in steps})
    assert server.asked("Range") == [None]
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "new" / FILE).stat().st_mode & 0o777 == 0o666 & ~umask


def test_truncated_then_only_the_rest(tmp_path: Path, server: Server) -> None:
    begin(server, tmp_path)
    steps: list[Progress] = []
    fetch("cifar10", tmp_path, report=steps.append, sources={"cifar10": (source(f"{server.url}/a"),)})
    arrived(tmp_path)
    assert server.asked("Range") == ["bytes=1000-"]
    assert server.asked("If-Range") == ['"first"']
    assert steps[0] == Progress(FILE, 1000, SIZE)


def test_truncated_several_times(tmp_path: Path, server: Server) -> None:
    server.pages["/a"].cut = 300_000
    for done in (300_000, 600_000, 900_000):
        assert f"at {done} of" in fails(server, tmp_path)
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("Range") == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_truncated_without_a_length(tmp_path: Path, server: Server) -> None:
    server.pages["/a"].length = False
    begin(server, tmp_path)
    get(server, tmp_path)
    arrived(tmp_path)


def test_truncated_in_a_chunk(tmp_path: Path, server: Server) -> None:
    server.pages["/a"].chunked = True
    server.pages["/a"].cut = 600_000
    assert "the connection was closed after " in fails(server, tmp_path)
    done = partial(tmp_path).stat().st_size
    server.pages["/a"].cut = None
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("Range") == [None, f"bytes={done}-"]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"ETag": 'W/"weak"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, "Mon, 01 Jan 2024 00:00:00 GMT"),
        ({"ETag": 'W/"weak"'}, None),
        ({}, None),
    ],
)
def test_what_a_part_is_known_by(tmp_path: Path, server: Server, headers: dict[str, str], said: str | None) -> None:
    server.pages["/a"].headers = headers
    begin(server, tmp_path)
    get(server, tmp_path)
    arrived(tmp_path)
    assert (server.asked("Range"), server.asked("If-Range")) == (["bytes=1000-"], [said])


def test_changed_between_attempts(tmp_path: Path, server: Server) -> None:
    server.pages["/a"] = Page(b"x" * SIZE, {"ETag": '"old"'}, cut=1000)
    fails(server, tmp_path)
    server.pages["/a"] = Page(OFFICIAL, {"ETag": '"new"'}, cut=5000)
    assert "at 5000 of" in fails(server, tmp_path)
    assert partial(tmp_path).read_bytes() == OFFICIAL[:5000]
    server.pages["/a"].cut = None
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("If-Range") == [None, '"old"', '"new"']


def test_a_server_without_ranges(tmp_path: Path, server: Server) -> None:
    begin(server, tmp_path)
    server.pages["/a"].ranges = False
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("Range") == ["bytes=1000-"]


def test_a_part_that_the_server_does_not_know(tmp_path: Path, server: Server) -> None:
    """416, because the file there is shorter: asked for as a whole, it shows to be another one."""
    begin(server, tmp_path)
    server.pages["/a"].content = b"short"
    assert f"the file there has 5 bytes instead of {SIZE}" in fails(server, tmp_path)
    assert server.asked("Range") == ["bytes=1000-", None]
    assert partial(tmp_path).stat().st_size == 1000
    server.pages["/b"] = Page(status=416)
    assert "/b: 416 Requested Range Not Satisfiable)" in fails(server, tmp_path, "/b")


@pytest.mark.parametrize(
    ("span", "told"),
    [
        ("bytes 0-4/5", "the file there has 5 bytes instead of"),
        ("nonsense", "does not say which"),
        (f"bytes 1000-{SIZE - 1}/*", None),
    ],
)
def test_wrong_parts(tmp_path: Path, server: Server, span: str, told: str | None) -> None:
    begin(server, tmp_path)
    server.pages["/a"].span = span
    if told is None:
        get(server, tmp_path)
        arrived(tmp_path)
    else:
        assert told in fails(server, tmp_path)
        assert partial(tmp_path).read_bytes() == OFFICIAL[:1000]


def test_a_server_that_sends_another_part_is_asked_for_all(tmp_path: Path, server: Server) -> None:
    begin(server, tmp_path)
    server.pages["/a"].span = f"bytes 7-{SIZE - 1}/{SIZE}"
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("Range")[-2:] == ["bytes=1000-", None]


def test_a_page_in_the_place_of_the_file_spoils_nothing(tmp_path: Path, server: Server) -> None:
    login = Page(b"<html>log in</html>", headers={"Content-Type": "text/html"}, length=False)
    server.pages |= {"/login": login, "/odd": Page(b"log in", length=False)}
    get(server, tmp_path, "/login", "/a")
    arrived(tmp_path)
    assert server.asked("Range") == [None, None]
    (tmp_path / FILE).unlink()
    server.requests.clear()
    get(server, tmp_path, "/odd", "/a")  # continued from the other place in vain, then got as a whole
    arrived(tmp_path)
    assert server.asked("Range") == [None, "bytes=6-", None]


def test_corrupted(tmp_path: Path, server: Server) -> None:
    bad = b"x" + OFFICIAL[1:]
    server.pages["/a"].content = bad
    told = fails(server, tmp_path)
    for part in ("damaged and has been removed", hashlib.md5(bad).hexdigest(), hashlib.md5(OFFICIAL).hexdigest()):
        assert part in told
    assert names(tmp_path) == []
    server.pages["/a"].content = OFFICIAL
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("Range") == [None, None]


@pytest.mark.parametrize("content", [b"x" * SIZE, b"x" * (SIZE + 1), OFFICIAL + b"x"])
def test_a_bad_part_of_the_full_size_is_not_built_upon(tmp_path: Path, server: Server, content: bytes) -> None:
    partial(tmp_path).write_bytes(content)
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("Range") == [None]


def test_a_whole_part_needs_no_server(tmp_path: Path, server: Server) -> None:
    partial(tmp_path).write_bytes(OFFICIAL)
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.requests == []


@pytest.mark.parametrize("content", [b"<html>Please log in.</html>", OFFICIAL + b"x"])
def test_another_size(tmp_path: Path, server: Server, content: bytes) -> None:
    server.pages["/a"].content = content
    assert f"the file there has {len(content)} bytes instead of {SIZE}" in fails(server, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "told"), [(404, "404 Not Found"), (403, "403 Forbidden"), (500, "500 Internal Server Error")]
)
def test_refused(tmp_path: Path, server: Server, status: int, told: str) -> None:
    server.pages["/a"].status = status
    assert f"{FILE} could not be fetched ({server.url}/a: {told}); try again later" in fails(server, tmp_path)
    assert names(tmp_path) == []
    server.pages["/a"].status = None
    begin(server, tmp_path)
    server.pages["/a"].status = status
    assert told in fails(server, tmp_path)
    assert partial(tmp_path).stat().st_size == 1000


def test_nobody_there(tmp_path: Path) -> None:
    with serve() as server:
        pass
    assert f"{server.url}/a: Connection refused" in fails(server, tmp_path)
    nowhere = Server("http://nowhere.invalid")
    assert "http://nowhere.invalid/a: " in fails(nowhere, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("stall", [0, 1000])
def test_stalled(tmp_path: Path, server: Server, stall: int) -> None:
    server.pages["/a"].stall = stall
    start = time.monotonic()
    told = fails(server, tmp_path, timeout=SOON)
    assert time.monotonic() - start >= SOON
    assert f"/a: nothing came for {SOON} s)" in told
    assert ("the same command goes on" in told) == (stall > 0)
    server.pages["/a"].stall = None
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("Range") == [None, f"bytes={stall}-" if stall else None]


def test_an_address_that_never_answers(tmp_path: Path) -> None:
    """Connections are taken by the system, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert f"nothing came for {SOON} s" in fails(server, tmp_path, timeout=SOON)


def test_redirected(tmp_path: Path, server: Server) -> None:
    with serve() as other:
        server.pages["/c"] = Page(location="/b")
        server.pages["/b"] = Page(location=f"{other.url}/a")
        other.pages["/a"] = Page(OFFICIAL, cut=1000)
        assert "goes on" in fails(server, tmp_path, "/c")
        other.pages["/a"].cut = None
        get(server, tmp_path, "/c")
        assert other.asked("Range") == [None, "bytes=1000-"]
        assert other.asked("If-Range") == [None, '"first"']
    arrived(tmp_path)


def test_redirected_in_a_circle(tmp_path: Path, server: Server) -> None:
    server.pages["/a"] = Page(location="/b")
    server.pages["/b"] = Page(location="/a")
    assert "302 a redirection that leads nowhere" in fails(server, tmp_path)
    assert len(server.requests) < 20


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/a", "file:///etc/hostname"])
def test_redirected_out_of_http(tmp_path: Path, server: Server, place: str) -> None:
    server.pages["/a"] = Page(location=place)
    assert "redirect" in fails(server, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [("https", "http", False), ("https", "https", True), ("http", "https", True), ("http", "http", True)],
)
def test_redirections_do_not_leave_https(old: str, new: str, allowed: bool) -> None:
    request = Request(f"{old}://host/a", headers={"Range": "bytes=5-"})
    answer = (request, io.BytesIO(), 302, "Found", Message(), f"{new}://host/b")
    if allowed:
        following = _Redirections().redirect_request(*answer)
        assert following is not None and following.full_url == f"{new}://host/b"
        assert following.get_header("Range") == "bytes=5-"
    else:
        with pytest.raises(RemoteError, match="it redirects to http://host/b, which is not https"):
            _Redirections().redirect_request(*answer)


def test_the_next_place_is_tried(tmp_path: Path, server: Server) -> None:
    server.pages |= {"/damaged": Page(b"x" * SIZE), "/short": Page(OFFICIAL, cut=1000)}
    told = fails(server, tmp_path, "/damaged", "/short", "/missing")
    assert all(part in told for part in ("/damaged: what arrived", ", then ", "/short: the conn", "/missing: 404"))
    server.requests.clear()
    get(server, tmp_path, "/missing", "/a")
    arrived(tmp_path)
    # What came from one place is continued from another, where its state has another name.
    assert (server.asked("Range"), server.asked("If-Range")) == (["bytes=1000-"] * 2, [None, None])


def test_unwritable(tmp_path: Path, server: Server) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written: " in fails(server, tmp_path / "file" / "root")
    (tmp_path / "taken").mkdir()
    partial(tmp_path / "taken").mkdir()
    assert "cannot be written: Is a directory" in fails(server, tmp_path / "taken")


def test_disk_full(tmp_path: Path, server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        told = fails(server, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{tmp_path / FILE} cannot be written: File too large; see to it, and give the same command again" in told
    get(server, tmp_path)
    arrived(tmp_path)


def test_interrupted(tmp_path: Path, server: Server) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("cifar10", tmp_path, report=interrupt, sources={"cifar10": (source(f"{server.url}/a"),)})
    assert not (tmp_path / FILE).exists()
    done = partial(tmp_path).stat().st_size
    assert 0 < done < SIZE
    get(server, tmp_path)
    arrived(tmp_path)
    assert server.asked("Range") == [None, f"bytes={done}-"]


def child(url: str, root: Path) -> subprocess.Popen[bytes]:
    """Another process that fetches the file."""
    code = (
        "import sys; from pathlib import Path; from tests.data.test_fetch import source, fetch\n"
        "fetch('cifar10', Path(sys.argv[2]), sources={'cifar10': (source(sys.argv[1]),)})"
    )
    return subprocess.Popen([sys.executable, "-c", code, url, str(root)], cwd=Path(__file__).parents[2])


def wait_for(path: Path, size: int) -> None:
    limit = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size >= size):
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_while_another_waits(tmp_path: Path, server: Server) -> None:
    """The one that waits goes on as soon as the first is gone, however that ended, and asks for the rest only."""
    server.pages["/a"].stall = 700_000
    first = child(f"{server.url}/a", tmp_path)
    try:
        wait_for(partial(tmp_path), 600_000)
        waiting = threading.Thread(target=get, args=(server, tmp_path))
        waiting.start()
        waiting.join(SOON)
        assert waiting.is_alive() and len(server.requests) == 1
        server.pages["/a"].stall = None
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    waiting.join(30)
    arrived(tmp_path)
    _, again = server.asked("Range")
    assert again is not None and int(again.removeprefix("bytes=").removesuffix("-")) >= 600_000


def test_many_at_once(tmp_path: Path, server: Server) -> None:
    server.pages["/a"].stall = 500_000
    threads = [threading.Thread(target=get, args=(server, tmp_path)) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_for(partial(tmp_path), 1)
    time.sleep(SOON)
    assert len(server.requests) == 1
    server.free.set()
    for thread in threads:
        thread.join(30)
    arrived(tmp_path)
    assert len(server.requests) == 1


def test_the_lock_of_a_file_that_was_removed_meanwhile_is_not_enough(tmp_path: Path) -> None:
    path, seen = tmp_path / "lock", []

    def wait() -> None:
        with _locked(path):
            seen.append(path.exists())

    waiting = threading.Thread(target=wait)
    with _locked(path):
        waiting.start()
        waiting.join(SOON)
        assert waiting.is_alive()
        path.unlink()
    waiting.join(30)
    assert seen == [True]


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path, server: Server) -> None:
    both = [child(f"{server.url}/a", tmp_path) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    arrived(tmp_path)
    assert server.asked("Range") == [None]


def test_already_there(tmp_path: Path, server: Server) -> None:
    get(server, tmp_path)
    inode = (tmp_path / FILE).stat().st_ino
    assert get(server, tmp_path) == [tmp_path / FILE]
    assert (len(server.requests), (tmp_path / FILE).stat().st_ino) == (1, inode)
    (tmp_path / FILE).write_bytes(b"x" * SIZE)
    get(server, tmp_path)
    arrived(tmp_path)


def idx_sources(server: Server, name: str, folder: Path) -> dict[str, tuple[Source, ...]]:
    """Sources of the zipped files in a folder, named as the real ones."""
    sources = []
    for real in SOURCES[name]:
        content = (folder / Path(real.path).name).read_bytes()
        server.pages[f"/{real.path}"] = Page(content)
        sources.append(source(f"{server.url}/{real.path}", path=real.path, content=content))
    return {name: tuple(sources)}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_four_files_are_loaded_from_where_they_are_put(tmp_path: Path, server: Server, name: str) -> None:
    write_idx(tmp_path / "made", idx_arrays(), zipped=True)
    sources = idx_sources(server, name, tmp_path / "made")
    root = tmp_path / "root"
    server.pages[f"/{SOURCES[name][2].path}"].status = 500
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz could not be fetched"):
        fetch(name, root, sources=sources)
    server.pages[f"/{SOURCES[name][2].path}"].status = None
    server.requests.clear()
    paths = fetch(name, root, sources=sources)
    assert [path for path, _ in server.requests] == [f"/{real.path}" for real in SOURCES[name][2:]]
    assert paths == [root / real.path for real in SOURCES[name]]
    assert names(root / name) == sorted(path.name for path in paths)
    assert load(name, root, check=False).train.inputs.equal(load(name, tmp_path / "made", check=False).train.inputs)
    # Elsewhere they do as well; other files elsewhere do not, and are left alone.
    (root / idx_folder(name)).parent.mkdir()
    (root / name).rename(root / idx_folder(name))
    assert {path.parent for path in fetch(name, root, sources=sources)} == {root / idx_folder(name)}
    broken = root / idx_folder(name) / "t10k-labels-idx1-ubyte.gz"
    broken.write_bytes(b"x")
    assert {path.parent for path in fetch(name, root, sources=sources)} == {root / name}
    assert broken.read_bytes() == b"x"


def idx_folder(name: str) -> str:
    return {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] + "/raw"


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_archives_are_loaded_from_where_they_are_put(tmp_path: Path, server: Server, name: str) -> None:
    (tmp_path / "made").mkdir()
    files = cifar_files(name, "binary", cifar_arrays(name))
    content = write_cifar(tmp_path / "made", name, "binary", files, archive=True).read_bytes()
    server.pages["/a"].content = content
    sources = {name: (source(f"{server.url}/a", path=SOURCES[name][0].path, content=content),)}
    assert fetch(name, tmp_path / "root", sources=sources) == [tmp_path / "root" / SOURCES[name][0].path]
    assert len(load(name, tmp_path / "root", check=False).test) == 4


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("version", ["binary", "python"])
def test_another_official_form_does_as_well(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, version: str, archive: bool
) -> None:
    files = cifar_files("cifar10", version, cifar_arrays("cifar10"))
    place = write_cifar(tmp_path, "cifar10", version, files, archive=archive)
    if archive and version == "python":
        assert get(server, tmp_path) == [tmp_path / FILE]  # comes before it
        (tmp_path / FILE).unlink()
        monkeypatch.setitem(OTHERS, place.name, hashlib.md5(place.read_bytes()).hexdigest())
    elif not archive:
        assert f"{place} has other files of cifar10, which would be read instead" in fails(server, tmp_path)
        for file, content in files.items():
            monkeypatch.setitem(CONTENT, ("cifar10", file), hashlib.md5(content).hexdigest())
    else:
        assert get(server, tmp_path) == [place]  # is the same file, and is replaced
        assert place.read_bytes() == OFFICIAL
    server.requests.clear()
    assert get(server, tmp_path)[0] in (place, place / "data_batch_1", place / "data_batch_1.bin")
    assert server.requests == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("digits", "digits comes with scikit-learn: there is nothing to fetch."),
        ("gaussian", "gaussian is drawn when it is used: there is nothing to fetch."),
        ("imagefolder", "imagefolder cannot be fetched: .* https://www.image-net.org, with an account"),
        (
            "mnsit",
            "There is no data set 'mnsit'; those that can be fetched are mnist, fashion-mnist, cifar10, cifar100",
        ),
    ],
)
def test_nothing_to_fetch(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        fetch(name, tmp_path)


def test_the_real_table() -> None:
    """What the two tables of checksums both know is the same, and addresses end as the files do."""
    for (name, _), md5 in PACKED.items():
        assert md5 in [real.md5 for real in SOURCES[name]]
    for real in (real for reals in SOURCES.values() for real in reals):
        assert real.urls and all(url.endswith("/" + Path(real.path).name) for url in real.urls)


def test_a_missing_set_names_the_command(tmp_path: Path) -> None:
    for name in SOURCES:
        with pytest.raises(DataError, match=f"fetched by `trimtab data fetch {name} --data-root {tmp_path}`"):
            load(name, tmp_path)
    with pytest.raises(DataError) as error:
        load("imagefolder", tmp_path)
    assert "fetch" not in str(error.value)
