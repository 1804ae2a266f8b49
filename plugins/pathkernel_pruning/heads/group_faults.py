"""Say why heads that share keys and values cannot be taken out, and which could."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_MOST_GROUPS = 6  # that a message lists


def group_fault(heads: int, groups: int, lost: Collection[int]) -> str:
    """Return why the weights of a layer cannot lose some heads, and what to change.

    Parameters
    ----------
    heads, groups : int
        Heads of the layer, and its groups, see
        :class:`pathkernel_pruning.heads.head_groups.HeadGroups`.
    lost : collection of int
        Heads that are to go, from 1.

    Returns
    -------
    str
        Clauses on the groups, on heads to name as well, and on those to leave out; empty if the
        heads can go.
    """
    size = heads // groups
    rows = [range(first, first + size) for first in range(1, heads + 1, size)]
    gone = [[head for head in row if head in lost] for row in rows]
    counts = {len(of_group) for of_group in gone} - {size}
    if len(counts) < 2:
        return ""
    further = min((_further(gone, size, most) for most in sorted(counts)), key=sum)
    missing = [
        _part(number, [head for head in row if head not in lost])
        for number, row in zip(further, rows)
        if number
    ]
    surplus = [
        _part(len(of_group) - min(counts), of_group)
        for of_group in gone
        if min(counts) < len(of_group) < size
    ]
    return (
        f"heads {list_groups(heads, groups)} share keys and values, so that whole groups "
        "can be taken out, or as many heads of each group that stays; name "
        f"{_several(missing)} as well, or leave out {_several(surplus)}"
    )


def list_groups(heads: int, groups: int) -> str:
    """Return the heads of each group of a layer, such as ``1 to 2 and 3 to 4``."""
    size = heads // groups
    return _several([f"{first} to {first + size - 1}" for first in range(1, heads + 1, size)])


def _further(gone: Sequence[Sequence[int]], size: int, most: int) -> list[int]:
    """Heads of each group to take as well, where groups that stay lose ``most``."""
    return [(most if len(of_group) <= most else size) - len(of_group) for of_group in gone]


def _part(number: int, heads: Sequence[int]) -> str:
    several = f"head{'s' * (len(heads) > 1)} {_numbers(heads)}"
    return several if number == len(heads) else f"{number} of {several}"


def _numbers(heads: Sequence[int]) -> str:
    """Numbers such as 3, 3 and 4, 3 to 6, or 3, 5 and 6."""
    if len(heads) > 2 and heads[-1] - heads[0] == len(heads) - 1:
        return f"{heads[0]} to {heads[-1]}"
    return _several(list(map(str, heads)))


def _several(texts: Sequence[str]) -> str:
    if len(texts) > _MOST_GROUPS:
        return f"{', '.join(texts[: _MOST_GROUPS - 1])}, … and {texts[-1]}"
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
