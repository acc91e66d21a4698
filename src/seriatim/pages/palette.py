"""The colours of pages and plots, in light and dark; this file imports nothing, so that every page can use it.

The ten colours differ from each other and from the paper, also for readers who cannot tell red from green (simulated
after G. M. Machado et al., *A physiologically-based model for simulation of color vision deficiency*, 2009).
"""

PAPER, INK, SOFT, RULE = "#ffffff", "#1d2023", "#565d64", "#d5d8db"
"""The paper, the text, secondary text, and rules."""
COLOURS: tuple[str, ...] = (
    *("#2f66d0", "#d2361e", "#3a7a78", "#3a0fae", "#6b703c"),
    *("#6f232c", "#2f4767", "#1a0a5c", "#9e58b4", "#2a2102"),
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
    *("#7a8fd0", "#f0682a", "#45a56c", "#a9b4fb", "#efe34a"),
    *("#ffb599", "#cadfff", "#8a80f5", "#e495af", "#dafaca"),
)
DARK = dict(zip(LIGHT, _ON_DARK_PAGE, strict=True))
"""Colours by CSS variable, on a dark page."""
