"""Fields of a Run that were made for processes of one machine, where its pods are the processes.

cpus, memory, workingDirectory, terminal   become the first container's (see `build`)
secretEnv                                  refused: a pod cannot read files of a machine
pids, umask, idleAfter                     taken, and without effect: the condition says so
"""

from collections.abc import Iterator

from fairlead.kube.client import Document
from fairlead.kube.gpu.ranks import pod_name
from fairlead.kube.gpu.template import PodTemplate, read_template
from fairlead.kube.kinds import NAME_MAX
from fairlead.schema.border import BadInput

_WITHOUT_EFFECT = {
    "pids": "the kubelet holds pods by its podPidsLimit",
    "umask": "a pod has none; set it in the command",
    "idleAfter": "the work of pods on their GPUs is not measured",
}


def refuse_fields(name: str, spec: Document) -> None:
    """Raises `BadInput` for a Run that its pods could not be as it says."""
    _refuse_name(name, spec["totalGPUs"])
    if spec.get("secretEnv"):
        text = "names files of a machine; pods have Secrets: template.spec.containers[].env[]"
        raise BadInput("spec.secretEnv", f"{text}.valueFrom.secretKeyRef")


def _refuse_name(name: str, ranks: int) -> None:
    """A rank's name is its pod's host name, so a Run's is a part of one."""
    if "." in name:
        raise BadInput("metadata.name", "must not have a dot: it is in its pods' host names")
    if name[:1].isdigit() and ranks > 1:
        raise BadInput("metadata.name", "must begin with a letter: it is its ranks' Service's")
    if len(pod_name(name, ranks - 1)) > NAME_MAX:
        raise BadInput("metadata.name", f"with a rank's number is over {NAME_MAX} long")


def without_effect(spec: Document) -> Iterator[str]:
    """What is said of fields that pods have no use for."""
    for field, why in _WITHOUT_EFFECT.items():
        if field in spec:
            yield f"spec.{field} has no effect: {why}"


def template_of(spec: Document, image: str | None) -> PodTemplate:
    """A Run's pod template; of one without, a container of `image` that runs its command."""
    if spec.get("template") is not None:
        return read_template(spec["template"])
    if image is None:
        raise BadInput("spec.template", "is missing, and the controller has no image")
    container = {"name": "run", "image": image, "command": spec.get("command") or []}
    return PodTemplate({"spec": {"containers": [container]}})
