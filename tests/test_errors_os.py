from __future__ import annotations

import errno

import pytest

from mgspmv.errors import (
    SourceAccessError,
    SourceError,
    StoreError,
    StoreNotFoundError,
    describe_os_error,
    is_operators,
    source_error,
    translate_os_error,
    translating,
)

FULL = OSError(errno.ENOSPC, "No space left on device")
DENIED = PermissionError(errno.EACCES, "Permission denied", "/a/b/c")


@pytest.mark.parametrize(
    ("error", "place", "doing", "said"),
    [
        (FULL, "/a", "write", r"cannot write /a: no space left on device; .* bytes and [\d,]+ inodes are free there"),
        (
            FULL,
            None,
            None,
            "cannot write a file: no space left on device; free some space, or choose a path on .* disk$",
        ),
        (OSError("16 requested and 8 written"), "/a", "write", "cannot write /a: no space left on device"),  # NumPy's
        (DENIED, "/a/b/c", "read", "cannot read /a/b/c: permission denied; change its mode or owner, or choose"),
        (DENIED, "/a/b/c/d", "write", "cannot write /a/b/c/d: permission denied"),
        (DENIED, "/a", "write", "cannot use /a/b/c: permission denied"),
        (DENIED, "/x", "write", "cannot use /a/b/c: permission denied"),
        (
            OSError(errno.EROFS, "", "/a/.b.zarr.0123.part/new/x"),
            "/a/b.zarr",
            "write",
            "cannot write /a/b.zarr: read",
        ),
        (OSError(errno.EROFS, "", "/a/zarr.0123.partial"), "/b", "write", "cannot write /a: read-only file system"),
        (
            OSError(errno.EMFILE, "", "/a"),
            None,
            None,
            "cannot use /a: too many open files; raise the limit",
        ),
        (OSError(errno.EEXIST, "", "/a"), "/a/b", "write", "cannot write /a/b: file exists; it or a parent folder"),
        (OSError(errno.EBADF, "Bad file descriptor"), "/a", "write", "cannot write /a: Bad file descriptor$"),
    ],
)
def test_the_place_and_the_remedy_are_said(error, place, doing, said):
    with pytest.raises(StoreError, match=f"^{said}"):
        raise translate_os_error(error, place, doing)


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), None),  # of a socket
        (PermissionError(errno.EACCES, "Forbidden"), "s3://bucket/a.zarr"),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), "/a"),
        (StoreNotFoundError("there is none"), "/a"),
        (FileNotFoundError(errno.ENOENT, "", "/a"), "/a"),
    ],
)
def test_other_errors_stay(error, place):
    with pytest.raises(type(error)) as raised, translating(place, "write"):
        raise error
    assert raised.value is error


def test_sources():
    assert type(source_error(ValueError(), "a.txt", "is damaged")) is SourceError
    found = source_error(DENIED, "a.txt", "is damaged")
    assert isinstance(found, SourceAccessError)
    assert (found.source, found.exit_code) == ("a.txt", 4)
    assert not is_operators(found)


def test_an_error_that_is_not_known_is_said_in_the_words_of_the_system():
    assert describe_os_error(OSError(errno.EBADF, "Bad file descriptor")) == "Bad file descriptor"
