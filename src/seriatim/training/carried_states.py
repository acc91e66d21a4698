"""The state that is carried from window to window, of all ranks together as checkpoints hold it."""

import numpy as np
import safetensors.torch
import torch

from ..core.key_value_cache import without_unused
from ..core.state import State, join_states, select_state, state_from_dict, state_leaves, state_to_dict
from ..processes.ranks import Ranks
from ..processes.shares import Share


def join_carried(state: State | None, like: State | None, ranks: Ranks, *, has_rows: bool) -> State | None:
    """Return the state of the rows of all ranks, in order, on the CPU.

    ``like`` is a state of the same structure; rows that are not the rank's own are left out. Every rank calls this, and
    only the leader has the result.
    """
    if ranks.count == 1 or state is None or like is None:
        return state
    rows = select_state(state, torch.arange(0)) if not has_rows else state
    contents = ranks.gather_on_leader(
        safetensors.torch.save({f"/{k}": v.cpu() for k, v in state_to_dict(rows).items()})
    )
    tensors = ({name[1:]: leaf for name, leaf in safetensors.torch.load(content).items()} for content in contents)
    return join_states([state_from_dict(leaves, like) for leaves in tensors]) if ranks.leads else None


def split_carried(state: State | None, share: Share) -> tuple[State | None, bool]:
    """Return the rows of this rank, given those of all, and whether it has rows of its own; see `join_carried`."""
    if state is None or share.count == 1:
        return state, True
    rows = np.arange(len(state_leaves(state)[0]))
    return without_unused(select_state(state, torch.from_numpy(share.of(rows)))), not share.is_idle(rows)
