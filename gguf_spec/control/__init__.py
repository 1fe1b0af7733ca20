"""How much to draft, and from which source, round by round.

base         what the engine asks of a controller; the fixed policy
costs        what a decode costs by its width, measured
acceptance   how likely drafted tokens stand, learned
adaptive     the controller that weighs one against the other
"""

from gguf_spec.control.adaptive import AdaptiveController, DrafterFacts, Hints
from gguf_spec.control.base import Choice, Controller, FixedPolicy, Offer, Round
from gguf_spec.control.costs import CostCurve

__all__ = [
    "AdaptiveController",
    "Choice",
    "Controller",
    "CostCurve",
    "DrafterFacts",
    "FixedPolicy",
    "Hints",
    "Offer",
    "Round",
]
