"""Ask libllama whether a plan's numbers are right, before anything is loaded."""

from __future__ import annotations

from gguf_spec.plan_request import PlanRequest
from gguf_spec.planning.types import Plan


def cross_checked(plan: Plan, request: PlanRequest, mode: str, *, here: bool) -> Plan:
    return plan
