"""Arrays by slot that grow with the slots.

Comes in: an array, and how many slots there are by now. Goes out: the same array, or a
longer one. Nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def grown(array: npt.NDArray[Any], count: int, fill: Any) -> npt.NDArray[Any]:
    """The array, if it has `count` places, or else a copy with twice as many; the new ones hold `fill`.

    >>> grown(np.array([3, 4]), 2, 0), grown(np.array([3, 4]), 3, -1)
    (array([3, 4]), array([ 3,  4, -1, -1, -1, -1]))
    """
    if count <= len(array):
        return array
    # Zeros cost nothing until they are touched.
    longer: npt.NDArray[Any] = np.zeros(2 * count, array.dtype) if fill == 0 else np.full(2 * count, fill, array.dtype)
    longer[: len(array)] = array
    return longer
