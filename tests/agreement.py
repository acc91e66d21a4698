"""Agreement of attention with `torch.nn`, in values and gradients."""

import torch
from torch import Tensor, nn

from seriatim.layers.cross_attention import CrossAttention


def like_torch(theirs: nn.MultiheadAttention, ours: nn.Module) -> dict[str, Tensor]:
    """Their parameters under our names, so that gradients reach them."""
    found = {"o_proj.weight": theirs.out_proj.weight, "o_proj.bias": theirs.out_proj.bias}
    for kind, whole in (("weight", theirs.in_proj_weight), ("bias", theirs.in_proj_bias)):
        if isinstance(ours, CrossAttention):
            query, *memory = whole.chunk(3)
            found |= {f"q_proj.{kind}": query, f"kv_proj.{kind}": torch.cat(memory)}
        else:
            found[f"qkv_proj.{kind}"] = whole
    assert set(found) == {name for name, _ in ours.named_parameters()}
    return found


def same_gradients(first: Tensor, second: Tensor, sources: list[Tensor]) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=1e-10)
    torch.manual_seed(9)
    direction = torch.randn_like(first)
    ours, theirs = (torch.autograd.grad((x * direction).sum(), sources) for x in (first, second))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
