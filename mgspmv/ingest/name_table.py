"""A hash table from names to small codes, which several threads fill at once.

    names  --hash-->  dealt to shards by the first bits of their hashes  --one thread in a shard at a time-->  codes

A shard has slots with 32 bits of a name's hash and its place in the shard, and by place where its bytes end and its
code. What some names lead to is touched before they are compared, so that the processor waits for all of it at once.

Numba has no types that mypy could read, hence the ignored decorators.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

PIECE_NAMES = 1 << 17
"""Names dealt at a time: bounds the room that shards keep free for them, and what they take while they are dealt."""
SHARD_BITS = 5
N_SHARDS = 1 << SHARD_BITS
"""More than there are threads at a time in most machines, so that few wait for another."""
_AT_ONCE = 128
"""Names whose slots, places and bytes the processor waits for together; they stay in its first cache."""
_HEAD = 2
"""Words of a record before the name."""
_UNKNOWN = -1


class NameTable:
    """Codes first, first + 1, ... for names: which has which is not said, where several threads encode.

    Open addressing with linear probing, at most half full. Holds for each name a record of 16 bytes and its own, up to
    the next eight, with room for half as many more, and 16 to 32 bytes of slots.

    Parameters
    ----------
    first : least code
    """

    def __init__(self, first: int = 0) -> None:
        self._first, self._n_names, self._counting = first, 0, Lock()
        self._shards = [_Shard() for _ in range(N_SHARDS)]

    def __len__(self) -> int:
        return self._n_names

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(shard.nbytes for shard in self._shards)

    def take_all(self) -> tuple[Any, np.ndarray]:
        """(n,) Arrow array of large strings, and (n,) int64: all names, and the code of each."""
        n_words = sum(shard.n_words for shard in self._shards)
        ends, codes = np.zeros(len(self) + 1, np.int64), np.empty(len(self), np.int64)
        text, first = np.empty(np.dtype(np.uint64).itemsize * n_words, np.uint8), 0
        for shard in self._shards:
            first = shard.read_all(first, ends, text, codes)
        return pa.LargeStringArray.from_buffers(len(self), pa.py_buffer(ends), pa.py_buffer(text)), codes

    def encode(self, names: Any) -> np.ndarray:
        """Codes of names, new ones where a name is new; several threads may ask at once.

        Parameters
        ----------
        names : Arrow array of strings

        Returns
        -------
        int64, as many
        """
        codes = np.empty(len(names), np.int64)
        for start in range(0, len(names), PIECE_NAMES):
            dealt = _Dealt(names.slice(start, PIECE_NAMES))
            for k in self._enter_shards(dealt):
                self._shards[k].encode(dealt.find_own(k), self._count, codes[start:])
        return codes

    def find(self, names: Any) -> np.ndarray:
        """Codes of names, -1 where one is not there; as of `encode`."""
        codes, dealt = np.empty(len(names), np.int64), _Dealt(names)
        for k, shard in enumerate(self._shards):
            shard.find(dealt.find_own(k), codes)
        return codes

    def _enter_shards(self, dealt: _Dealt) -> Iterator[int]:
        """The shards that names are in, nobody else in them; first those that are free."""
        busy = []
        for k in np.flatnonzero(np.diff(dealt.starts)).tolist():
            if self._shards[k].lock.acquire(blocking=False):
                try:
                    yield k
                finally:
                    self._shards[k].lock.release()
            else:
                busy.append(k)
        for k in busy:
            with self._shards[k].lock:
                yield k

    def _count(self, n_new: int) -> int:
        """The first code of so many names that are new."""
        with self._counting:
            self._n_names += n_new
            return self._first + self._n_names - n_new


class _Dealt:
    """Names by shard.

    Parameters
    ----------
    names : Arrow array of strings
    """

    def __init__(self, names: Any) -> None:
        ends, self._text = take_buffers(names)
        n = len(ends) - 1
        self._keys, self._begins, self._order = np.empty(n, np.uint64), np.empty(n, np.int64), np.empty(n, np.int32)
        self.starts, self._n_words = np.zeros(N_SHARDS + 1, np.int64), np.zeros(N_SHARDS, np.int64)
        _deal(
            ends, self._text, np.empty(n, np.uint64), self._keys, self._begins, self._order, self.starts, self._n_words
        )

    def find_own(self, k: int) -> _Own:
        """The names of a shard."""
        own = slice(self.starts[k], self.starts[k + 1])
        return _Own(self._text, self._keys[own], self._begins[own], self._order[own], int(self._n_words[k]))


class _Own(NamedTuple):
    """Names of one shard."""

    text: np.ndarray
    keys: np.ndarray
    """Of a name, the last 32 bits of its hash, and before them how many bytes it has."""
    begins: np.ndarray
    """Where its bytes begin."""
    order: np.ndarray
    """Which of all names it is."""
    n_words: int
    """That records of all take."""


class _Shard:
    """The names whose hashes begin with the same bits."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._n_names, self.n_words = 0, 1
        self._slots = np.zeros(1 << 5, np.uint64)
        self._words = np.zeros(1 << 6, np.uint64)

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + self._words.nbytes

    def read_all(self, first: int, ends: np.ndarray, text: np.ndarray, codes: np.ndarray) -> int:
        """Put names and codes behind the first ones of arrays, that have room; how many there are then."""
        last = first + self._n_names
        _read_records(self._words.view(np.uint8), self._words, ends[first : last + 1], text, codes[first:last])
        return last

    def encode(self, own: _Own, count: Any, codes: np.ndarray) -> None:
        """Fill in the codes of names."""
        n_known, first = self._n_names, self.n_words
        records = self._insert(own)
        if self._n_names > n_known:
            _number(self._words, first, self.n_words, count(self._n_names - n_known))
        _take_codes(self._words, records, own.order, codes)

    def _insert(self, own: _Own) -> np.ndarray:
        """The records of names, those that are new added."""
        self._make_room(len(own.keys), own.n_words)
        records = np.empty(len(own.keys), np.uint64)
        known = self._slots, self._words, self._n_names, self.n_words
        self._n_names, self.n_words = _insert(own.text, own.keys, own.begins, *known, records)
        return records

    def find(self, own: _Own, codes: np.ndarray) -> None:
        """As `encode`, -1 for names that are not there."""
        _find(own.text, own.keys, own.begins, self._slots, self._words, own.order, codes)

    def _make_room(self, n_names: int, n_words: int) -> None:
        n = self._n_names + n_names
        if self.n_words + n_words > len(self._words):
            self._words = _grow(self._words, self.n_words + n_words)
        if 2 * n > len(self._slots):
            slots = np.zeros(1 << (2 * n - 1).bit_length(), np.uint64)
            _refill(self._slots, slots)
            self._slots = slots


def take_buffers(names: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where names end, the begin of the first before, and their bytes."""
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    _, ends, text = names.buffers()
    dtype = np.int64 if pa.types.is_large_string(names.type) else np.int32
    if ends is None or not len(names):
        return np.zeros(1, dtype), np.zeros(0, np.uint8)
    own = np.frombuffer(ends, dtype)[names.offset : names.offset + len(names) + 1]
    return own, np.frombuffer(text or b"", np.uint8)


def _grow(array: np.ndarray, n: int) -> np.ndarray:
    grown = np.empty(max(n, len(array) + len(array) // 2), array.dtype)
    grown[: len(array)] = array
    return grown


# uint64 and int64 together make a float64 in Numba, so each number beside a hash is a uint64, and so is each place in a
# text: of a number with a sign it would be asked whether it is less than 0.
_0, _1, _8, _32 = map(np.uint64, (0, 1, 8, 32))
_SHARD_SHIFT = np.uint64(64 - SHARD_BITS)
_LOW = np.uint64(0xFFFFFFFF)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _read_word(text: Any, at: Any) -> Any:
    """Eight bytes, which the compiler makes one load of."""
    word = _0
    for k in range(8):
        word |= np.uint64(text[at + np.uint64(k)]) << np.uint64(8 * k)
    return word


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _hash(text: Any, start: Any, end: Any) -> Any:
    """Eight bytes at a time, mixed as by the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = (end - start) * _MIX_2
    at, last = start, _0
    while at + _8 < end:
        x = (x ^ _read_word(text, at)) * _MIX_1
        x ^= x >> _32
        at += _8
    if at - start >= _8:  # some of the last eight twice
        last = _read_word(text, end - _8)
    else:
        while at < end:
            last = (last << _8) | np.uint64(text[at])
            at += _1
    x = (x ^ last) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _deal(ends: Any, text: Any, hashes: Any, keys: Any, begins: Any, order: Any, starts: Any, n_words: Any) -> None:
    """Hash names, and order them by shard."""
    for j in range(len(hashes)):
        hashes[j] = _hash(text, np.uint64(ends[j]), np.uint64(ends[j + 1]))
        shard = hashes[j] >> _SHARD_SHIFT
        starts[shard + _1] += 1
        n_words[shard] += _HEAD + 1 + ((ends[j + 1] - ends[j]) >> 3)
    for k in range(1, len(starts)):
        starts[k] += starts[k - 1]
    cursor = starts[:-1].copy()
    for j in range(len(hashes)):
        shard = hashes[j] >> _SHARD_SHIFT
        at = cursor[shard]
        order[at], begins[at] = j, ends[j]
        keys[at] = (np.uint64(ends[j + 1] - ends[j]) << _32) | (hashes[j] & _LOW)
        cursor[shard] += 1


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _read_last(text: Any, begin: Any, n: Any) -> Any:
    """The bytes of a text beyond the last eight that it is whole of, up to seven, and zeros."""
    left, word = n & np.uint64(7), _0
    if n >= _8:
        return (_read_word(text, begin + n - _8) >> (_8 * (np.uint64(7) - left))) >> _8
    for k in range(left):
        word |= np.uint64(text[begin + k]) << (_8 * k)
    return word


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _is_at(record: Any, words: Any, text: Any, begin: Any, n: Any) -> bool:
    """Whether a record has a name."""
    at, end = record + np.uint64(_HEAD), begin + (n & ~np.uint64(7))
    others = (words[record] ^ n) | (words[at + (n >> np.uint64(3))] ^ _read_last(text, begin, n))
    while begin < end:
        others |= words[at] ^ _read_word(text, begin)
        begin += _8
        at += _1
    return bool(others == _0)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _find_at_once(text: Any, keys: Any, begins: Any, slots: Any, words: Any, records: Any) -> None:
    """The records of names whose slot is the first or second that is looked at, 0 for others."""
    mask = np.uint64(len(slots) - 1)
    for j in range(len(keys)):
        slot = keys[j] & _LOW & mask
        entry, other = slots[slot], slots[(slot + _1) & mask]
        records[j] = (other if (other ^ keys[j]) & _LOW == _0 else entry) >> _32
    for j in range(len(keys)):
        if words[records[j]] != keys[j] >> _32:
            records[j] = _0
    for j in range(len(keys)):
        if records[j] != _0 and not _is_at(records[j], words, text, np.uint64(begins[j]), keys[j] >> _32):
            records[j] = _0


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _look_up(text: Any, key: Any, begin: Any, slots: Any, words: Any) -> Any:
    """The slot of a name, or the empty one where it belongs."""
    mask = np.uint64(len(slots) - 1)
    slot = key & _LOW & mask
    while slots[slot] != _0:
        if (slots[slot] ^ key) & _LOW == _0:
            record = slots[slot] >> _32
            if words[record] == key >> _32 and _is_at(record, words, text, begin, key >> _32):
                return slot
        slot = (slot + _1) & mask
    return slot


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _insert(
    text: Any, keys: Any, begins: Any, slots: Any, words: Any, n_names: int, n_words: int, records: Any
) -> tuple[int, int]:
    """The records of names, those that are new added; how many names and words there are then."""
    for first in range(0, len(keys), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        _find_at_once(text, keys[some], begins[some], slots, words, records[some])
        for j in range(first, min(first + _AT_ONCE, len(keys))):
            if records[j] == _0:
                begin = np.uint64(begins[j])
                slot = _look_up(text, keys[j], begin, slots, words)
                if slots[slot] == _0:
                    slots[slot] = (np.uint64(n_words) << _32) | (keys[j] & _LOW)
                    n_words = _write_record(words, n_words, text, begin, keys[j] >> _32)
                    n_names += 1
                records[j] = slots[slot] >> _32
    return n_names, n_words


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _write_record(words: Any, at: int, text: Any, begin: Any, n: Any) -> int:
    """Put a name at the end of the records; where the next begins."""
    words[at] = n
    at += _HEAD
    end = begin + (n & ~np.uint64(7))
    words[at + ((end - begin) >> 3)] = _read_last(text, begin, n)
    while begin < end:
        words[at] = _read_word(text, begin)
        begin += _8
        at += 1
    return at + 1


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _number(words: Any, at: int, end: int, code: int) -> None:
    """Give codes to the names of records, in their order."""
    while at < end:
        words[at + 1] = code
        code += 1
        at += _HEAD + 1 + (int(words[at]) >> 3)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _take_codes(words: Any, records: Any, order: Any, codes: Any) -> None:
    for j in range(len(records)):
        codes[order[j]] = words[records[j] + _1]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _find(text: Any, keys: Any, begins: Any, slots: Any, words: Any, order: Any, codes: Any) -> None:
    for j in range(len(keys)):
        slot = _look_up(text, keys[j], np.uint64(begins[j]), slots, words)
        codes[order[j]] = words[(slots[slot] >> _32) + _1] if slots[slot] != _0 else _UNKNOWN


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _refill(old: Any, slots: Any) -> None:
    """Put what is in slots, which are different names', into others, which are empty."""
    mask = np.uint64(len(slots) - 1)
    for entry in old:
        if entry != _0:
            slot = entry & _LOW & mask
            while slots[slot] != _0:
                slot = (slot + _1) & mask
            slots[slot] = entry


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _read_records(known: Any, words: Any, ends: Any, text: Any, codes: Any) -> None:
    """The names of all records, one after the other, and their codes."""
    at = 1
    for k in range(len(codes)):
        n, begin = int(words[at]), 8 * (at + _HEAD)
        codes[k] = words[at + 1]
        for j in range(n):  # a slice takes Numba two seconds more to compile
            text[ends[k] + j] = known[begin + j]
        ends[k + 1] = ends[k] + n
        at += _HEAD + 1 + (n >> 3)
