"""The GPU control plane: services on one committer of the ledger. See README.md."""

from fairlead.engine.gpu.plane import ControlPlane as ControlPlane
from fairlead.engine.gpu.projection import Projection as Projection
from fairlead.engine.gpu.state import Phase as Phase
from fairlead.engine.gpu.state import job_prefix as job_prefix
from fairlead.engine.gpu.values import Applied as Applied
from fairlead.engine.gpu.values import Author as Author
from fairlead.engine.gpu.values import Config as Config
from fairlead.engine.gpu.values import Denied as Denied
from fairlead.engine.gpu.values import EditConflict as EditConflict
from fairlead.engine.gpu.values import Forbidden as Forbidden
from fairlead.engine.gpu.values import HostNodes as HostNodes
from fairlead.engine.gpu.values import NotFound as NotFound
from fairlead.engine.gpu.values import Refused as Refused
