"""Arguments as the C++ engine takes them: checked, and never cast to another kind of number."""

from __future__ import annotations

import numbers
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def integer(name: str, value: Any, low: int = -INT64_MAX, high: int = INT64_MAX) -> int:
    """`value` as an int in [low, high]. ValueError naming it otherwise; floats and bools are refused."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        result = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}, must be an integer") from None
    if not low <= result <= high:
        wanted = f"at least {low}" if high == INT64_MAX and result < low else f"in [{low}, {high}]"
        raise ValueError(f"{name} is {result}, must be {wanted}")
    return result


def number(name: str, value: Any) -> float:
    """`value` as a float. ValueError naming it otherwise; strings and bools are refused."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} is {value!r}, must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is {value!r}, too large for a double") from None


def array(name: str, value: ArrayLike, dtypes: tuple[str, ...], shape: tuple[int | str, ...] | None = None) -> NDArray[Any]:
    """`value` as a row-major array of one of the dtypes. In `shape` an int is required, a string stands for any size."""
    result = np.asarray(value, order="C")
    if result.dtype.name not in dtypes:
        mend = f"convert it with .astype(numpy.{dtypes[0]}) if that is meant"
        raise ValueError(f"{name} must be of dtype {' or '.join(dtypes)}, is {result.dtype}: {mend}")
    if shape is not None and not (
        result.ndim == len(shape)
        and all(isinstance(want, str) or want == got for want, got in zip(shape, result.shape))
    ):
        wanted = ", ".join(str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({wanted}), has {result.shape}")
    return result


def floats(name: str, value: ArrayLike, shape: tuple[int | str, ...] | None = None) -> NDArray[np.float32]:
    """`value` as float32; float16 is widened, float64 rounded, as numpy users expect. Integers are refused."""
    return array(name, value, ("float32", "float64", "float16"), shape).astype(np.float32, copy=False)


def integers(name: str, value: ArrayLike, shape: tuple[str, ...], high: int) -> NDArray[np.int64]:
    """A copy of `value`, which holds integers up to `high`. ValueError naming the first that is negative or larger."""
    given = np.asarray(value)
    if given.dtype.kind not in "iu" and given.size > 0:
        raise ValueError(f"{name} must hold integers, holds {given.dtype}")
    if given.ndim != len(shape):
        raise ValueError(f"{name} must have shape ({', '.join(shape)}), has {given.shape}")
    bad = (given < 0) | (given > high)
    if bad.any():
        raise ValueError(f"{name} holds {given[bad][0]}, must be in [0, {high}]")
    return np.array(given, dtype=np.int64, order="C")


def token_ids(name: str, value: ArrayLike, shape: tuple[str, ...], vocab_size: int) -> NDArray[np.int32]:
    """A copy of `value`, token ids of a vocabulary. ValueError naming the first that is outside."""
    return integers(name, value, shape, vocab_size - 1).astype(np.int32)
