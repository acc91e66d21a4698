"""Metrics of generated texts, for Prometheus."""

from collections.abc import Callable, Mapping

from .live_text import LiveText
from .prometheus import Registry
from .text_engine import TextEngine

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of times."""


class TextMetrics:
    """Counts tokens and measures times; the state of an engine is read when the metrics are asked for."""

    def __init__(self, registry: Registry, engines: Mapping[str, TextEngine]) -> None:
        def counter(name: str, text: str) -> Callable[..., None]:
            return registry.counter(f"seriatim_{name}", text, ["model"]).add

        self._prompt_tokens = counter("prompt_tokens_total", "Tokens of prompts, known ones included.")
        self._cached_tokens = counter(
            "cached_prompt_tokens_total", "Tokens of prompts that were read for another text."
        )
        self._generated = counter("generated_tokens_total", "Tokens that were generated.")
        self._cancelled = counter("cancelled_texts_total", "Texts whose clients went away.")
        text = "Time from the arrival of a request to the first token of a text."
        self._first_token = registry.histogram("seriatim_time_to_first_token_seconds", text, SECONDS, ["model"])

        def gauge(name: str, text: str, value: Callable[[TextEngine], float]) -> None:
            def read() -> dict[tuple[str, ...], float]:
                return {(name,): value(engine) for name, engine in engines.items()}

            registry.gauge(f"seriatim_{name}", text, ["model"], read=read)

        gauge("running_texts", "Texts in the batch.", lambda engine: engine.batch.num_running)
        gauge("waiting_texts", "Texts that wait for a place in the batch.", lambda engine: engine.num_waiting)
        gauge("prefix_cache_bytes", "Size of the states of prompts.", lambda engine: engine.batch.cache.bytes)

    def observe(self, model: str, text: LiveText, *, is_cancelled: bool) -> None:
        """Count a text that has ended or was cancelled."""
        self._prompt_tokens(text.num_prompt if text.is_read else 0, model=model)
        self._cached_tokens(text.num_cached, model=model)
        self._generated(text.num_generated, model=model)
        if is_cancelled:
            self._cancelled(1, model=model)
        if text.first_token is not None:
            self._first_token.observe(text.first_token - text.arrived, model=model)
