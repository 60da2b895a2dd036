"""Memory and descriptors over time as one SVG file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tests.soak.verdict import MB, Recording, second_half, slope_bytes_per_min

WIDTH, HEIGHT = 960, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 40
COLORS = ("#888888", "#1f6feb", "#d1572b", "#2e9e5b", "#8a4fd0", "#b8860b")


def draw(recording: Recording, title: str) -> str:
    """Two panels, one below the other; the half that is judged is shaded."""
    samples = recording.during
    half = second_half(samples)
    memory, descriptors = {}, {}
    for pid, name in recording.names.items():
        seen = [one for one in samples if pid in one.processes]
        label = f"{name} {slope_bytes_per_min(half, pid) / MB:+.2f} MB/min"
        memory[label] = [(one.at_s / 60, one.processes[pid].rss_bytes / MB) for one in seen]
        descriptors[name] = [(one.at_s / 60, float(one.processes[pid].descriptors)) for one in seen]
    judged_from = half[0].at_s / 60 if half else 0.0
    levels = [
        (f"{name} {when}", sample.processes[pid].rss_bytes / MB, number)
        for number, (pid, name) in enumerate(recording.names.items())
        for when, sample in (("before", recording.before), ("after", recording.after))
        if pid in sample.processes
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{2 * HEIGHT}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{2 * HEIGHT}" fill="white"/>',
            _panel(f"{title}: resident memory, MB", memory, judged_from, levels),
            f'<g transform="translate(0 {HEIGHT})">',
            _panel("open descriptors", descriptors, judged_from, []),
            "</g>",
            "</svg>",
            "",
        ]
    )


def _panel(
    title: str,
    lines: dict[str, list[tuple[float, float]]],
    judged_from: float,
    levels: Sequence[tuple[str, float, int]],
) -> str:
    last_x = max((x for points in lines.values() for x, _ in points), default=1.0) or 1.0
    top_y = max([y for points in lines.values() for _, y in points] + [value for _, value, _ in levels], default=1.0)
    step_x, step_y = _step(last_x), _step(top_y)
    top_y = math.ceil(top_y / step_y) * step_y or 1.0

    def x_of(value: float) -> float:
        return LEFT + value / last_x * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - value / top_y * (HEIGHT - TOP - BOTTOM)

    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    out = [
        f'<text x="{LEFT}" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{x_of(judged_from):.1f}" y="{TOP}" width="{right - x_of(judged_from):.1f}" '
        f'height="{bottom - TOP}" fill="#f3f3f3"/>',
    ]
    for number in range(round(top_y / step_y) + 1):
        y = y_of(number * step_y)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{number * step_y:g}</text>')
    for number in range(int(last_x / step_x) + 1):
        x = x_of(number * step_x)
        out.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" font-size="11" text-anchor="middle">{number * step_x:g} min</text>'
        )
    for label, value, number in levels:
        y, color = y_of(value), COLORS[number % len(COLORS)]
        x = LEFT if label.endswith("before") else right - 12
        out.append(
            f'<line x1="{x}" y1="{y:.1f}" x2="{x + 12}" y2="{y:.1f}" stroke="{color}" stroke-width="4">'
            f"<title>{escape(label)} {value:.1f}</title></line>"
        )
    for number, (label, points) in enumerate(lines.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        y = TOP + 14 + 18 * number
        out.append(f'<text x="{right + 10}" y="{y}" font-size="12" fill="{color}">{escape(label)}</text>')
    return "\n".join(out)


def _step(largest: float) -> float:
    """Between marks, so that there are four to ten: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(largest / 4)) if largest > 0 else 1.0
    return next(power * factor for factor in (5, 2, 1) if power * factor <= largest / 4)
