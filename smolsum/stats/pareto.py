"""Two measures at once, both better when higher: the front that nothing else beats, and the area that it covers."""

from collections.abc import Iterable

Point = tuple[float, float]


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other equals or beats in both coordinates, each once, from the left."""
    front: list[Point] = []
    for x, y in sorted(set(points), reverse=True):  # from the right: a point stays if it is higher than all so far
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def hypervolume(points: Iterable[Point], worst: Point = (0.0, 0.0)) -> float:
    """Return the area between `worst` and the front of the points (Zitzler and Thiele, 1998, "Multiobjective
    optimization using evolutionary algorithms"); points that are no better than `worst` in both add nothing."""
    front = pareto_front((x, y) for x, y in points if x > worst[0] and y > worst[1])
    area, left = 0.0, worst[0]
    for x, y in front:
        area += (x - left) * (y - worst[1])
        left = x
    return area
