"""Which process of which job this is, by flags or the launcher's environment."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping

from jaxformer.errors import InputError
from jaxformer.runtime.xla_flags import expected_platform

PEER_TIMEOUT = 30.0  # seconds of silence after which a process counts as lost
FLAGS = {  # name: (type, default, help); the same in train.py and in the commands
    "coordinator_address": (str, "", "host:port of process 0, for a job of several processes"),
    "num_processes": (int, 0, "processes of the job; 0: from SLURM, MPI or the TPU"),
    "process_id": (int, -1, "number of this process, from 0; -1: from the launcher"),
    "peer_timeout": (float, PEER_TIMEOUT, "seconds of silence after which a process is lost"),
}


@dataclasses.dataclass(frozen=True)
class Launch:
    """This process's place in the job; the launcher's environment supplies what is not given.

    Attributes:
      coordinator_address: `host:port` of process 0, with a free port.
      num_processes: of the job; 1: only this process, whatever the environment says; 0: unknown.
      process_id: of this process, from 0; -1: unknown.
      peer_timeout: seconds of silence after which a process counts as lost.
    """

    coordinator_address: str = ""
    num_processes: int = 0
    process_id: int = -1
    peer_timeout: float = PEER_TIMEOUT

    def __post_init__(self):
        if self.coordinator_address and not re.fullmatch(r".+:\d+", self.coordinator_address):
            raise InputError(
                f"--coordinator_address={self.coordinator_address} has no port; write host:port"
            )
        if 0 < self.num_processes <= self.process_id:
            raise InputError(
                f"--process_id={self.process_id} of --num_processes={self.num_processes}; "
                "processes are numbered from 0"
            )
        if self.peer_timeout < 5.0:
            raise InputError(f"--peer_timeout={self.peer_timeout:g}: use at least 5 seconds")


def resolve(launch: Launch, environment: Mapping[str, str]) -> Launch | None:
    """`launch` completed from the environment; None: a single process.

    What JAX finds by itself (SLURM, Open MPI 4, Cloud TPU) is left open. This function reads the
    variables of launchers that give a process its number but no address: Open MPI 5 and an indexed
    Kubernetes Job. Such a Job does not say whether its pods form one job, so a flag must: an
    address, `--num_processes=N` alone where JAX may ask the Kubernetes API for the address, or
    `--num_processes=1`.

    Raises:
      InputError: a part is missing.
    """
    address = launch.coordinator_address or environment.get("JAX_COORDINATOR_ADDRESS", "")
    number = environment.get("OMPI_COMM_WORLD_RANK", environment.get("JOB_COMPLETION_INDEX", ""))
    counted = environment.get("OMPI_COMM_WORLD_SIZE", environment.get("SLURM_NTASKS", ""))
    in_step = "SLURM_STEP_NODELIST" in environment and "SLURM_PROCID" in environment
    if launch.num_processes == 1:
        return None
    if launch.process_id < 0 and in_step and not number:
        number = environment["SLURM_PROCID"]
    process_id = launch.process_id if launch.process_id >= 0 or not number else int(number)
    if address:
        num_processes = launch.num_processes or int(counted or 0)
        missing = [] if num_processes else ["--num_processes"]
        missing += [] if process_id >= 0 else ["--process_id"]
        if missing:
            raise InputError(
                f"--coordinator_address={address} needs {' and '.join(missing)} too: no known "
                "launcher sets them"
            )
        return dataclasses.replace(
            launch,
            coordinator_address=address,
            num_processes=num_processes,
            process_id=process_id,
        )
    indexed = {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= environment.keys()
    if launch.num_processes and indexed:
        return launch
    if launch.num_processes or launch.process_id >= 0:
        raise InputError(
            "--num_processes and --process_id need --coordinator_address=host:port, the address of "
            "process 0"
        )
    if "OMPI_COMM_WORLD_SIZE" in environment:
        if int(counted) > 1 and "OMPI_MCA_orte_hnp_uri" not in environment:
            raise InputError(
                "this mpirun provides no address; give --coordinator_address=host:port, the "
                "address of rank 0"
            )
        return launch if int(counted) > 1 else None
    if in_step:
        return launch if int(counted or 1) > 1 else None
    if expected_platform(dict(environment)) == "tpu":
        return launch if on_tpu_pod(environment) else None
    if indexed:
        raise InputError(
            f"JOB_COMPLETION_INDEX={environment['JOB_COMPLETION_INDEX']}: this pod belongs to an "
            "indexed Kubernetes Job, which does not say whether its pods form one job; give "
            "--num_processes=1 if each pod runs alone, or --num_processes=N and "
            "--coordinator_address=host:port of the pod of index 0 if they form one job"
        )
    return None


def on_tpu_pod(environment: Mapping[str, str]) -> bool:
    """Whether a TPU's machine is one of several; True if only its metadata, read by JAX, tells."""
    slices = int(environment.get("MEGASCALE_NUM_SLICES") or 1)
    hosts = environment.get("TPU_WORKER_HOSTNAMES")
    return slices > 1 or hosts is None or len(hosts.split(",")) > 1


def local_devices(environment: Mapping[str, str]) -> list[int] | None:
    """The GPUs of a process that is alone on its machine; None: JAX decides.

    Under SLURM and Open MPI, JAX gives each process the one GPU of its local rank, even if a
    machine runs one process for all its GPUs.
    """
    if environment.get("JAX_LOCAL_DEVICE_IDS") or expected_platform(dict(environment)) != "gpu":
        return None
    tasks = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") or environment.get(
        "SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", "")
    )
    if not re.fullmatch(r"1(\(x\d+\))?", tasks):
        return None
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    count = len(visible.split(",")) if visible else int(environment.get("SLURM_GPUS_ON_NODE") or 0)
    return list(range(count)) or None


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `Launch` for a command."""
    group = parser.add_argument_group("several processes (SLURM and MPI set these themselves)")
    for name, (kind, default, text) in FLAGS.items():
        group.add_argument(f"--{name}", type=kind, default=default, help=text)


def launch_of(flags) -> Launch:
    """The `Launch` that parsed flags describe."""
    return Launch(**{name: getattr(flags, name) for name in FLAGS})
