"""Random numbers that are a function of (seed, epoch, sample index, view, draw), and of nothing else.

A counter-based generator (the SplitMix64 finalizer over a chained key) replaces generator state: whatever the number of
workers, ranks or restarts, the same sample in the same epoch gets the same crop, and another epoch another one.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer: a bijection of 64-bit words with full avalanche (arithmetic wraps by design)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


def uniform(
    seed: int, epoch: int, index: np.ndarray, views: np.ndarray | int, draws: int, stream: int = 0
) -> np.ndarray:
    """Uniform numbers in [0, 1).

    Args:
        seed, epoch: non-negative integers.
        index: (B,) sample indices in the data set (not positions in the batch).
        views: (V,) view numbers, or how many (then 0 .. V-1).
        draws: numbers per sample and view.
        stream: separates uses that must not share numbers (crops, colors, noise).
    Returns: float64 array (B, V, draws).
    """
    view = np.arange(views) if isinstance(views, int) else np.asarray(views)
    with np.errstate(over="ignore"):
        key = _mix(np.array([seed], np.uint64) + _GOLDEN)
        key = _mix(key ^ (np.uint64(stream) + np.uint64(1)) * _GOLDEN)
        key = _mix(key ^ (np.uint64(epoch) + np.uint64(1)) * _MIX2)
        key = _mix(key ^ (np.asarray(index).astype(np.uint64)[:, None, None] + np.uint64(1)) * _MIX1)
        key = _mix(key ^ (view.astype(np.uint64)[None, :, None] + np.uint64(1)) * _GOLDEN)
        key = _mix(key + np.arange(draws, dtype=np.uint64)[None, None, :] * _GOLDEN)
    return (key >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, epoch: int, length: int) -> np.ndarray:
    """The order of one epoch: a permutation of 0 .. length-1 that depends on (seed, epoch) alone."""
    return np.random.default_rng([seed, epoch]).permutation(length)
