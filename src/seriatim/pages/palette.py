"""The colours of pages and plots, in light and dark; this file imports nothing, so that every page can use it.

The nine colours of a theme differ by a CIEDE2000 difference of at least 15, and of at least 8 for readers who cannot
tell red from green (simulated after G. M. Machado et al., *A physiologically-based model for simulation of color vision
deficiency*, 2009, severity 1). Each has a contrast of at least 3:1 with the paper.
"""

PAPER, INK, SOFT, RULE = "#ffffff", "#1d2023", "#565d64", "#d5d8db"
"""The paper, the text, secondary text, and rules."""
COLOURS: tuple[str, ...] = (
    *("#3371dc", "#c24528", "#098a6b", "#823da2", "#703f11"),  # blue, vermilion, green, purple, brown
    *("#da649f", "#767e84", "#202f6a", "#939208"),  # pink, grey, dark blue, olive
)
"""Colours of lines and points, in the order of their use."""
ON_DARK, ON_LIGHT = "#fefefe", "#010101"
"""Text on the colours of a heat map, which are the same in both themes."""
HEAT = "cividis"
"""The colour map of heat maps. Its lightness rises evenly, so it can be read without red or green."""

LIGHT = {"paper": PAPER, "ink": INK, "soft": SOFT, "rule": RULE} | {
    f"c{i}": colour for i, colour in enumerate(COLOURS, 1)
}
"""Colours by CSS variable, on a light page."""
_ON_DARK_PAGE = (
    *("#14171b", "#e6e8ea", "#a5adb5", "#3a4047"),
    *("#65a2ff", "#f16333", "#3fb58a", "#9e6dd1", "#b68b5f"),
    *("#fea9cf", "#a2a8ad", "#90dffa", "#e5d848"),  # dark blue is light blue, and olive yellow
)
DARK = dict(zip(LIGHT, _ON_DARK_PAGE, strict=True))
"""Colours by CSS variable, on a dark page."""
