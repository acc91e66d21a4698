"""Mamba: A. Gu and T. Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023."""

from typing import ClassVar

from ...config import Fields
from .checkpoint_family import ConversionRule, Family, ModelFacts

MIXER = ("A_log", "D", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "in_proj.weight", "out_proj.weight")


class MambaFamily(Family):
    """Mixers with a norm before them and residual connections."""

    model_types = ("mamba",)
    prefix = "backbone."
    tied: ClassVar = {"backbone.embeddings.weight": "lm_head.weight"}
    tied_by_default = True

    def model(self) -> Fields:
        """Return the section ``model``; see `Family.model`."""
        self.require(use_bias=False, hidden_act="silu")
        size = self.number("hidden_size")
        self.require(intermediate_size=self.number("expand", 2) * size)
        options = {
            "state_size": self.number("state_size", 16),
            "expansion": self.number("expand", 2),
            "kernel_size": self.number("conv_kernel", 4),
            "dt_rank": -(-size // 16)
            if self.fields.get("time_step_rank") == "auto"
            else self.number("time_step_rank", -(-size // 16)),
            "norm_epsilon": self.real("layer_norm_epsilon", 1e-5),
            "bias": self.has_kernel_bias,
        }
        return self.section("mamba", size, self.number("num_hidden_layers"), options)

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> Fields:
        """Return the fields; see `Family.fields_for`."""
        facts.demand(norm="rms", norm_first=True, final_norm=True)
        options, size = facts.options, facts.model.hidden_size
        return {
            "model_type": "mamba",
            "architectures": ["MambaForCausalLM"],
            "hidden_size": size,
            "num_hidden_layers": facts.model.num_layers,
            "state_size": options["state_size"],
            "expand": options["expansion"],
            "intermediate_size": options["expansion"] * size,
            "conv_kernel": options["kernel_size"],
            "time_step_rank": options["dt_rank"] or -(-size // 16),
            "use_conv_bias": options["bias"],
            "use_bias": False,
            "layer_norm_epsilon": options["norm_epsilon"],
        }

    @property
    def has_kernel_bias(self) -> bool:
        """Whether the short convolution has a bias."""
        return bool(self.fields.get("use_conv_bias", True))

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        rules = self.tables("backbone.embeddings.weight", "lm_head.weight")
        for i in range(self.number("num_hidden_layers")):
            ours, theirs = f"layer.layers.{i}", f"backbone.layers.{i}"
            rules.append(ConversionRule(f"{ours}.norm.weight", (f"{theirs}.norm.weight",)))
            rules += [ConversionRule(f"{ours}.layer.{part}", (f"{theirs}.mixer.{part}",)) for part in MIXER]
            rules.append(ConversionRule(f"{ours}.layer.conv_weight", (f"{theirs}.mixer.conv1d.weight",), "kernel"))
            if self.has_kernel_bias:
                rules.append(ConversionRule(f"{ours}.layer.conv_bias", (f"{theirs}.mixer.conv1d.bias",)))
        return [*rules, ConversionRule("layer.norm.weight", ("backbone.norm_f.weight",))]
