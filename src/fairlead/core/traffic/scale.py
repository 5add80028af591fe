"""When more backends, or a larger machine, are what a group needs: a hint, never an act."""

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import TickPlan
from fairlead.core.traffic.state import AdmissionMode


def scale_hint(plan: TickPlan, config: Config) -> TrafficReason | None:
    """Why the group should be scaled; None: it need not.

    A resource of a machine runs out within `t_safe_s`; or the only backend is not enough, and there
    is no other to move connections to.
    """
    if plan.ttf_s is not None and plan.ttf_s < config.t_safe_s:
        return TrafficReason.TTF
    if plan.scale_hint and plan.admission.mode is not AdmissionMode.NORMAL:
        return TrafficReason.MONOPOLY
    return None
