"""The delta rule: a matrix state whose old value at a key is erased before a new one is written.

S. Yang et al., "Parallelizing linear transformers with the delta rule over sequence length", NeurIPS 2024. For each
head, with the notation of `seriatim.layers.matrix_states`:

    D_t = diag(α_t) S_{t−1}
    S_t = D_t − u_t (r_tᵀ D_t) + k_t v_tᵀ,    o_t = S_tᵀ q_t

r ``read`` the key at which the old value is read · u ``erase`` where it is erased. For most models u = k, and
S_t = D_t + k_t (v_t − D_tᵀ r_t)ᵀ.

`delta_step` computes these equations. `delta_scan` computes C steps at once. With P(x, y) the P of `matrix_states` for
queries x and keys y, and S the state at the beginning of the chunk,

    (I + A) E = −P'(r, k) V − (R ⊙ e^G) S,    A = P'(r, u), where P' is P without its diagonal
    O = (Q ⊙ e^G) S + P(q, k) V + P(q, u) E
    S ← e^(G_C) ⊙ S + (K ⊙ e^(G_C − G))ᵀ V + (U ⊙ e^(G_C − G))ᵀ E

E holds the vectors that are erased, with a minus sign. Where u = k, the unknown is V + E, and (I + A)(V + E) = V −
(R ⊙ e^G) S. One triangular solve for all chunks gives E as a function of S; only S is computed chunk after chunk.
"""

import torch
from torch import Tensor

from .matrix_states import Chunks, decayed, same_heads
from .scan import at_least_float32


def delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    read: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    *,
    erase: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute one step of `delta_scan`; sequences have no time dimension."""
    v = at_least_float32(v)
    q, k, read = (at_least_float32(x) for x in same_heads(v, q, k, read))
    before = decayed(state, log_decay)  # (B, H, K, V)
    erased = (read.unsqueeze(3) * before).sum(2)  # (B, H, V)
    if erase is None:
        after = before + k.unsqueeze(3) * (v - erased).unsqueeze(2)
    else:
        after = before + k.unsqueeze(3) * v.unsqueeze(2) - at_least_float32(erase).unsqueeze(3) * erased.unsqueeze(2)
    return (q.unsqueeze(3) * after).sum(2), after.to(state.dtype)


def delta_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    read: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    *,
    erase: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over a sequence of at least one step, in float32 or wider.

    Args:
        q: queries ``(batch, time, heads, K)``, or with a divisor of the number of heads, which then share them.
        k: keys, like the queries.
        v: values ``(batch, time, heads, V)``.
        read: r, like the queries.
        log_decay: log α ``(batch, time, heads)`` or ``(batch, time, heads, K)``; None where nothing decays.
        state: S ``(batch, heads, K, V)``.
        erase: u ``(batch, time, heads, K)``; None for the keys.

    Returns:
        Outputs ``(batch, time, heads, V)`` and the state after the last step.
    """
    with torch.autocast(v.device.type, enabled=False):
        chunks = Chunks(log_decay, v)
        q, k, read = same_heads(v, q, k, read)
        q, k, v, read = map(chunks.split, (q, k, v, read))  # (N, B * H, C, K or V)
        rest: Tensor | None
        added: Tensor | None
        if erase is None:
            (scores,), (system,) = chunks.products((q, read), (k,))
            rest, added, target, erased_at = None, None, v, k
        else:
            erased_at = chunks.split(erase)
            (fresh, scores), (overlap, system) = chunks.products((q, read), (k, erased_at))
            rest, added = fresh @ v, chunks.until_end(k).mT @ v
            target = -overlap.tril(-1) @ v

        # (I + A)⁻¹ times both parts of the right side: V + E = solved − reading S, or E alone
        sides = torch.cat([target, chunks.since_start(read)], dim=3)
        both = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
        solved, reading = both.split([v.shape[3], read.shape[3]], dim=3)

        writing, totals = chunks.until_end(erased_at).mT, chunks.totals()
        current, starts, written = state.to(chunks.dtype).flatten(0, 1), [], []
        for n, (x, y, key) in enumerate(zip(solved, reading, writing, strict=True)):
            starts.append(current)
            written.append(torch.baddbmm(x, y, current, alpha=-1))
            base = current if totals is None else totals[n] * current
            current = torch.baddbmm(base if added is None else base + added[n], key, written[-1])
        outputs = chunks.since_start(q) @ torch.stack(starts) + scores @ torch.stack(written)
        return chunks.join(outputs if rest is None else outputs + rest), current.view(state.shape).to(state.dtype)
