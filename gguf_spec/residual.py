"""The arithmetic of residual verification: a drawn draft stands, or what replaces it.

With target_probs and draft_probs the distributions that target and drafter draw from at a position,
after all filters, and x drawn from draft_probs (Leviathan et al. 2023, Chen et al. 2023):

    x stands with probability    min(1, target_probs(x) / draft_probs(x))
    otherwise one is drawn from  max(0, target_probs - draft_probs), normalised

What results is distributed as target_probs, whatever draft_probs is: a token y comes with
probability min(target_probs(y), draft_probs(y)) as a draft that stands, and with what is missing to
target_probs(y) as a replacement. How good the drafter is decides only how often its tokens stand:
in sum(min(target_probs, draft_probs)) of all cases.
"""

from __future__ import annotations

import numpy as np

from gguf_spec.sampling import Distribution


def stands(token: int, target: Distribution, draft: Distribution, uniform: float) -> bool:
    """Whether ``token``, drawn from ``draft``, is kept; ``uniform`` is a number in (0, 1).

    The quotient is not computed, so a token that the target cannot choose is never kept, and one
    that both think equally likely always is.
    """
    return uniform * draft.of(token) < target.of(token)


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """What a token that does not stand is replaced from: the normalised positive difference.

    Tokens are compared by their ids: the two may have different candidates. Where rounding leaves
    no difference at all, it is ``target``.
    """
    ids, drafted = target.ids, draft.ids
    if len(ids) == len(drafted) and (ids == drafted).all():
        difference = target.probs - draft.probs
    else:
        at = np.minimum(drafted.searchsorted(ids), len(drafted) - 1)
        difference = target.probs - np.where(drafted[at] == ids, draft.probs[at], 0.0)
    left = difference > 0.0
    total = float(difference[left].sum())
    if not total > 0.0:
        return target
    return Distribution(ids[left], difference[left] / total)
