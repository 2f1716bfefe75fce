"""Student's t distribution with a whole number of degrees of freedom."""

import functools
import math

import numpy as np
from numpy.typing import NDArray


@functools.lru_cache(maxsize=4096)
def t_quantile(p: float, df: int) -> float:
    """The x with P(T <= x) = p for Student's t with a whole number of degrees of freedom.

    Bisection on theta = atan(x / sqrt(df)), where the probability is a finite sum. Raises
    ValueError for p outside (0, 1) or df < 1.
    """
    if not 0 < p < 1 or df < 1:
        raise ValueError(f"need 0 < p < 1 and df >= 1, got p = {p}, df = {df}")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if central_probability(middle, df) < 2 * p - 1:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(df)


def central_probability(theta: float, df: int) -> float:
    """P(|T| <= sqrt(df) tan(theta)).

        odd df:   2/pi (theta + sin cos (1 + 2/3 cos^2 + (2 4)/(3 5) cos^4 + ...)), (df-1)/2 terms
        even df:  sin (1 + 1/2 cos^2 + (1 3)/(2 4) cos^4 + ...), df/2 terms

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    odd = df % 2
    square, term, total = math.cos(theta) ** 2, 1.0, 0.0
    for i in range(1, (df - odd) // 2 + 1):
        total += term
        term *= square * (2 * i - 1 + odd) / (2 * i + odd)
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * math.cos(theta) * total)
    return math.sin(theta) * total


@functools.lru_cache(maxsize=256)
def shift_found(df: int, level: float, power: float) -> float:
    """The mean difference, in standard errors, that a two-sided t-test finds with this power.

        P(|Z + shift| > t_df(1 - level / 2) S) = power,   Z normal, S^2 = chi^2_df / df

    Bisection on the shift; the chance is summed over a grid of S. Source: the noncentral t
    distribution, Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.9.
    """
    limit = t_quantile(1 - level / 2, df)
    s = np.linspace(0, 1 + 12 / math.sqrt(df), 4001)[1:]
    weight = np.exp((df - 1) * np.log(s) - df * (s**2 - 1) / 2)
    weight /= weight.sum()
    low, high = 0.0, 2 * limit + 10
    while low < (middle := (low + high) / 2) < high and high - low > 1e-7:
        beyond = 2 - _below(limit * s - middle) - _below(limit * s + middle)
        low, high = (middle, high) if float(weight @ beyond) < power else (low, middle)
    return low


def _below(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(Z <= x) of a normal Z."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x.tolist()])
