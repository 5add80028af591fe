"""The CPU governor's decisions: how many millicores of a node each pod gets, and why.

    from fairlead.core.cpu import Pod, Snapshot, clear

    plan = clear(Snapshot(1000, (Pod("a", 100, 900, 0.5), Pod("b", 100, 900, 0.9))))
    plan.allocations   # {'a': 403, 'b': 597}

See README.md beside this file for the terms and the flow.
"""

from fairlead.core.cpu.actuate import Containment as Containment
from fairlead.core.cpu.actuate import contain as contain
from fairlead.core.cpu.actuate import contained as contained
from fairlead.core.cpu.actuate import is_greedy as is_greedy
from fairlead.core.cpu.allocate import Guardrails as Guardrails
from fairlead.core.cpu.allocate import LimitWrite as LimitWrite
from fairlead.core.cpu.allocate import Misses as Misses
from fairlead.core.cpu.allocate import NodePlan as NodePlan
from fairlead.core.cpu.allocate import NodeSnapshot as NodeSnapshot
from fairlead.core.cpu.allocate import WritePhase as WritePhase
from fairlead.core.cpu.allocate import allocate as allocate
from fairlead.core.cpu.market import clear as clear
from fairlead.core.cpu.model import Actuation as Actuation
from fairlead.core.cpu.model import CpuMode as CpuMode
from fairlead.core.cpu.model import Headroom as Headroom
from fairlead.core.cpu.model import Plan as Plan
from fairlead.core.cpu.model import Pod as Pod
from fairlead.core.cpu.model import Policy as Policy
from fairlead.core.cpu.model import Snapshot as Snapshot
from fairlead.core.cpu.need import pod_bounds as pod_bounds
from fairlead.core.cpu.observe import CpuConfig as CpuConfig
from fairlead.core.cpu.observe import CpuMemory as CpuMemory
from fairlead.core.cpu.observe import PodMemory as PodMemory
from fairlead.core.cpu.observe import WriteResult as WriteResult
from fairlead.core.cpu.observe import WrittenLimit as WrittenLimit
from fairlead.core.cpu.observe import applied as applied
from fairlead.core.cpu.observe import left_out as left_out
from fairlead.core.cpu.observe import limits_millicores as limits_millicores
from fairlead.core.cpu.observe import node_snapshot as node_snapshot
from fairlead.core.cpu.observe import observe as observe
from fairlead.core.cpu.observe import settle as settle
from fairlead.core.cpu.resize import PodLimits as PodLimits
from fairlead.core.cpu.resize import ResizePlan as ResizePlan
from fairlead.core.cpu.resize import ResizePod as ResizePod
from fairlead.core.cpu.resize import ResizeState as ResizeState
from fairlead.core.cpu.resize import ResizeWait as ResizeWait
from fairlead.core.cpu.resize import WantedLimits as WantedLimits
from fairlead.core.cpu.resize import held_limits as held_limits
from fairlead.core.cpu.resize import newest_capacities as newest_capacities
from fairlead.core.cpu.resize import next_resizes as next_resizes
from fairlead.core.cpu.resize import wanted_limits as wanted_limits
from fairlead.core.cpu.sighting import ContainerSighting as ContainerSighting
from fairlead.core.cpu.sighting import NodeSample as NodeSample
from fairlead.core.cpu.sighting import PodSighting as PodSighting
from fairlead.core.cpu.signal import Counters as Counters
from fairlead.core.cpu.signal import Smoothing as Smoothing
