"""Memory between two protected pages: an access outside of it ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Arena:
    """Memory between two protected pages."""

    SIZE = 64 * mmap.PAGESIZE

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, self.SIZE + 2 * mmap.PAGESIZE)
        self.begin = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + mmap.PAGESIZE
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for page in (self.begin - mmap.PAGESIZE, self.begin + self.SIZE):
            assert protect(page, mmap.PAGESIZE, 0) == 0

    def empty(self, shape: tuple[int, ...], dtype: Any, at_end: bool) -> Array:
        """An array that ends before the last page, or begins after the first."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert size <= self.SIZE
        offset = mmap.PAGESIZE + (self.SIZE - size if at_end else 0)
        array: Array = np.ndarray(shape, dtype, self.memory, offset)  # type: ignore[call-overload]
        return array

    def copy(self, array: Array, at_end: bool) -> Array:
        result = self.empty(array.shape, array.dtype, at_end)
        result[...] = array
        return result
