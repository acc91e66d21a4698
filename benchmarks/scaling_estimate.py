"""Print the tables of `docs/scaling.md`: what large models and texts would take on many machines.

    python benchmarks/scaling_estimate.py            # measure this machine, and write the record
    python benchmarks/scaling_estimate.py --write    # write the tables into docs/scaling.md, from the record

The figures are measured on one machine; assumptions about other machines are the constants below.
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

import record
from counting_measurement import measure_counting
from counting_tables import counting_table, measured_counting_table
from page_tables import table, write_page
from scaling_simulation import Layer, Model, Network, Step, memory_of_rank, simulate_step
from training_measurement import SMALL, mamba, measure_training

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
GPUS, MACHINES = 64, 100
"""What is asked: a Mamba on so many GPUs, and a 5-gram model of 10¹² tokens on so many machines."""
WIDTH, LAYERS, VOCABULARY = 2048, 48, 50_280
"""The Mamba of 1.3 B parameters (A. Gu and T. Dao 2023), with tied embeddings."""
STEP_TOKENS, TRAINING_TOKENS, MICRO_TOKENS = 2**19, 26e9, 4096
"""Tokens of a step, of the whole training (20 a parameter), and of a micro-batch of one GPU."""
PEAK, REACHED, MEMORY_RATE = 989e12, 0.7, 3.35e12
"""Assumed of an H100: products in bfloat16 a second and bytes of memory a second (its data sheet), and the share of the
products that large matrices reach."""
LINK = Network(bandwidth=50e9, latency=20e-6)
"""Assumed: the network between machines of eight GPUs, 400 Gbit/s for each GPU, and the time of a round of a ring."""
GPU_BYTES = 80e9
FAILURE_HOURS = 16_384 * 54 * 24 / 419
"""GPU hours between two failures: 419 unexpected interruptions in 54 days on 16,384 GPUs (A. Grattafiori et al., "The
Llama 3 Herd of Models", 2024, section 3.3.4)."""
STORAGE = 2e9
"""Assumed: bytes a second to the shared file system."""
KINDS = ("data", "fsdp")


def scaled_model(figures: Mapping[str, float], micro_tokens: int = MICRO_TOKENS) -> Model:
    """Return the Mamba, with the seconds of a micro-batch of a GPU."""
    rate = PEAK * REACHED * figures["share_of_product"]

    def part(parameters: float) -> Layer:
        return Layer(parameters, 2 * parameters * micro_tokens / rate)

    layer = part(sum(parameter.numel() for parameter in mamba(WIDTH).parameters()))
    return Model([layer] * LAYERS, part(VOCABULARY * WIDTH))


def simulated(figures: Mapping[str, float], kind: str, network: Network, micro_tokens: int = MICRO_TOKENS) -> Step:
    """Return a step of the Mamba."""
    micro_batches = STEP_TOKENS // GPUS // micro_tokens
    return simulate_step(scaled_model(figures, micro_tokens), GPUS, network, kind, micro_batches)


def memory(figures: Mapping[str, float], kind: str, micro_tokens: int = MICRO_TOKENS) -> dict[str, float]:
    """Return the bytes of each kind of memory of the leader."""
    activations = micro_tokens * LAYERS * WIDTH * figures["activation_bytes"]
    micro_batches = STEP_TOKENS // GPUS // micro_tokens
    return memory_of_rank(scaled_model(figures), GPUS, kind, micro_batches, activations)


def training_tables(figures: Mapping[str, float]) -> list[str]:
    """Return the tables of the Mamba."""
    parameters, steps = scaled_model(figures).parameters, TRAINING_TOKENS / STEP_TOKENS
    found = {kind: simulated(figures, kind, LINK) for kind in KINDS}
    sizes = {kind: memory(figures, kind) for kind in KINDS}
    without_rounds = {kind: simulated(figures, kind, Network(LINK.bandwidth, 0.0)) for kind in KINDS}
    pessimistic = {
        kind: step.compute_seconds + network_error(figures, kind) * step.network_seconds for kind, step in found.items()
    }
    totals = {kind: sum(parts.values()) for kind, parts in sizes.items()}
    activations = 2 * STEP_TOKENS / GPUS * LAYERS * WIDTH * figures["activation_bytes"] / MEMORY_RATE
    rate, checkpoint = PEAK * REACHED * figures["share_of_product"], 3 * 4 * parameters
    wait = checkpoint / min(STORAGE, figures["checkpoint_rate"])
    between = FAILURE_HOURS / GPUS
    hours = {kind: step.seconds * steps / 3600 for kind, step in found.items()}
    rows = [(f"memory: {part}", [f"{sizes[kind][part] / 1e9:.1f} GB" for kind in KINDS]) for part in sizes["data"]]
    rows += [
        ("memory in all", [f"{totals[kind] / 1e9:.1f} GB" for kind in KINDS]),
        (f"fits in {GPU_BYTES / 1e9:.0f} GB", ["yes" if totals[kind] < GPU_BYTES else "no" for kind in KINDS]),
        ("bytes through the link of a GPU, a step", [f"{found[kind].network_bytes / 1e9:.1f} GB" for kind in KINDS]),
        ("communication alone, a step", [f"{found[kind].network_seconds:.2f} s" for kind in KINDS]),
        (
            "of which rounds of the ring",
            [f"{found[kind].network_seconds - without_rounds[kind].network_seconds:.2f} s" for kind in KINDS],
        ),
        (
            f"products a second: {figures['share_of_product']:.0%} (measured) of {REACHED:.0%} (assumed) of the peak",
            [f"{REACHED * figures['share_of_product']:.0%}, {rate / 1e12:.0f} · 10¹²"] * 2,
        ),
        ("computation alone, a step", [f"{found[kind].compute_seconds:.2f} s" for kind in KINDS]),
        ("of which writing and reading activations once, at least", [f"{activations:.2f} s"] * 2),
        ("both, overlapped", [f"{found[kind].seconds:.2f} s" for kind in KINDS]),
        ("share of the time that computes", [f"{found[kind].efficiency:.0%}" for kind in KINDS]),
        (
            "nothing overlapped, communication as slow as in the check below",
            [f"{pessimistic[kind]:.2f} s" for kind in KINDS],
        ),
        ("the whole training", [f"{hours[kind]:.1f} hours" for kind in KINDS]),
        ("GPU hours", [f"{hours[kind] * GPUS:,.0f}" for kind in KINDS]),
        ("a checkpoint: size, time to write", [f"{checkpoint / 1e9:.1f} GB, {wait:.0f} s"] * 2),
        ("hours between failures", [f"{between:,.0f}"] * 2),
        ("best time between checkpoints", [f"{(2 * wait * between * 3600) ** 0.5 / 3600:.1f} hours"] * 2),
    ]
    title = (
        f"A Mamba of {parameters / 1e9:.2f} B parameters ({LAYERS} layers of {WIDTH:,}), {GPUS} GPUs, "
        f"{STEP_TOKENS:,} tokens a step, which are {STEP_TOKENS // GPUS:,} a GPU in micro-batches of {MICRO_TOKENS:,}; "
        f"{TRAINING_TOKENS / 1e9:g} · 10⁹ tokens ({steps:,.0f} steps):"
    )
    return [title, "", *table(["", *(f"`parallel: {kind}`" for kind in KINDS)], rows)]


def choice_tables(figures: Mapping[str, float]) -> list[str]:
    """Return what other micro-batches and other links would take."""
    rows = []
    for tokens in (2 * MICRO_TOKENS, MICRO_TOKENS, MICRO_TOKENS // 2, MICRO_TOKENS // 4):
        cells = []
        for kind in KINDS:
            size = sum(memory(figures, kind, tokens).values())
            fits = "" if size < GPU_BYTES else ", does not fit"
            cells += [f"{size / 1e9:.0f} GB{fits}", f"{simulated(figures, kind, LINK, tokens).seconds:.2f} s"]
        rows.append((f"{tokens:,}", cells))
    links = []
    for factor in (2.0, 1.0, 0.5):
        steps = [simulated(figures, kind, Network(LINK.bandwidth / factor, LINK.latency)) for kind in KINDS]
        cells = [cell for step in steps for cell in (f"{step.seconds:.2f} s", f"{step.efficiency:.0%}")]
        links.append((f"{LINK.bandwidth / factor / 1e9:g} GB/s", cells))
    return [
        *table(
            ["tokens of a micro-batch", *(f"{what}, `{kind}`" for kind in KINDS for what in ("memory", "step"))], rows
        ),
        "",
        *table(["link of a GPU", *(f"{what}, `{kind}`" for kind in KINDS for what in ("step", "computes"))], links),
    ]


def checked_step(figures: Mapping[str, float], kind: str) -> Step:
    """Return a simulated step of two processes of the measured machine."""
    seconds, count = figures["step_half"] / 3 / 4, figures["small_parameters"] / 4
    link = Network(figures["bandwidth"], figures["latency"])
    return simulate_step(Model([Layer(count, seconds)] * 4), 2, link, kind)


def network_error(figures: Mapping[str, float], kind: str) -> float:
    """Return the measured seconds of two processes beyond their computation, over the simulated communication alone."""
    step = checked_step(figures, kind)
    return (figures[f"step_{kind}"] - step.compute_seconds) / step.network_seconds


def check_table(figures: Mapping[str, float]) -> list[str]:
    """Return the prediction of the simulation for two processes of the measured machine, beside the measured steps."""
    found = [(checked_step(figures, kind), figures[f"step_{kind}"]) for kind in KINDS]
    beyond = [(step.seconds - step.compute_seconds, measured - step.compute_seconds) for step, measured in found]

    def milliseconds(values: Iterable[float]) -> list[str]:
        return [f"{1000 * value:.0f} ms" for value in values]

    rows = [
        ("step, predicted", milliseconds(step.seconds for step, _ in found)),
        ("step, measured", milliseconds(measured for _, measured in found)),
        ("step, measured / predicted", [f"{measured / step.seconds:.2f}" for step, measured in found]),
        ("computation, measured in one process", milliseconds(step.compute_seconds for step, _ in found)),
        ("beyond computation, predicted", milliseconds(predicted for predicted, _ in beyond)),
        ("beyond computation, measured", milliseconds(measured for _, measured in beyond)),
        ("beyond computation, measured / predicted", [f"{measured / predicted:.1f}" for predicted, measured in beyond]),
        ("communication alone, predicted", milliseconds(step.network_seconds for step, _ in found)),
        (
            "beyond computation, measured / communication alone, predicted",
            [f"{network_error(figures, kind):.1f}" for kind in KINDS],
        ),
    ]
    return table(["two processes of this machine", *(f"`parallel: {kind}`" for kind in KINDS)], rows)


def tables(figures: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the tables by the name under which `docs/scaling.md` shows them."""
    return {
        "training": training_tables(figures),
        "training, other choices": choice_tables(figures),
        "check": check_table(figures),
        "counting, measured": measured_counting_table(figures),
        "counting, smoothed on one machine": counting_table(figures, MACHINES, 1),
        "counting, smoothed on all machines": counting_table(figures, MACHINES, MACHINES),
    }


def known() -> dict[str, float]:
    """Return the figures of the record."""
    return {key: figure.value for key, figure in record.read("scaling").figures.items()}


def save(figures: Mapping[str, float]) -> None:
    """Write the record."""
    ratios = {kind: figures[f"step_{kind}"] / checked_step(figures, kind).seconds for kind in KINDS}
    claims = [
        record.Claim(
            text=f"the simulation predicts a step of two processes of this machine with `{kind}` within 10 %",
            reached=0.9 <= ratio <= 1.1,
            ours=f"measured {ratio:.2f} times",
        )
        for kind, ratio in ratios.items()
    ]
    record.save(
        "scaling",
        claims=claims,
        settings={"width": SMALL},
        figures={key: record.Figure(value, 0.8 * value, 1.2 * value) for key, value in figures.items()},
        tables=[
            [["two processes of this machine", "predicted", "measured", "measured / predicted"]]
            + [
                [
                    kind,
                    f"{checked_step(figures, kind).seconds:.3f} s",
                    f"{figures[f'step_{kind}']:.3f} s",
                    f"{ratio:.2f}",
                ]
                for kind, ratio in ratios.items()
            ]
        ],
        notes="The figures behind docs/scaling.md; those of the counting of n-grams are in the tables of that page.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/scaling.md")
    if not parser.parse_args().write:
        save(measure_training() | measure_counting())
    else:
        write_page(PAGE, tables(known()))


if __name__ == "__main__":
    main()
