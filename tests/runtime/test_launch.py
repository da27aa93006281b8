"""Flags and launchers' variables: which process of which job this is."""

import argparse

import pytest

from jaxformer.errors import InputError
from jaxformer.runtime.launch import (
    Launch,
    add_process_arguments,
    launch_of,
    local_devices,
    resolve,
)

CPU = {"JAX_PLATFORMS": "cpu"}
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NTASKS": "16",
    "SLURM_PROCID": "5", "SLURM_LOCALID": "5", **CPU,
}  # fmt: skip
INDEXED = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3", **CPU}
MPI5 = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", **CPU}


@pytest.mark.parametrize(
    "environment",
    [
        CPU,
        {**CPU, "KUBERNETES_SERVICE_HOST": "10.0.0.1"},  # a notebook in a pod
        {**SLURM, "SLURM_NTASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", "SLURM_PROCID": "0", **CPU},  # without srun
        {**MPI5, "OMPI_COMM_WORLD_SIZE": "1"},
        {"JAX_PLATFORMS": "tpu", "TPU_WORKER_HOSTNAMES": "localhost"},
        {**INDEXED, "JAX_PLATFORMS": "tpu", "TPU_WORKER_HOSTNAMES": "localhost"},
        {**INDEXED, **MPI5, "OMPI_COMM_WORLD_SIZE": "1"},
    ],
)
def test_a_process_of_its_own(environment):
    assert resolve(Launch(), environment) is None


@pytest.mark.parametrize(
    "environment",
    [
        SLURM,
        {**MPI5, "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:5"},
        {"JAX_PLATFORMS": "tpu", "TPU_WORKER_HOSTNAMES": "a,b"},
        {**INDEXED, "JAX_PLATFORMS": "tpu", "TPU_WORKER_HOSTNAMES": "a,b"},  # GKE
        {"JAX_PLATFORMS": "tpu", "TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"},
        {"JAX_PLATFORMS": "tpu"},  # JAX asks the machine's metadata
    ],
)
def test_what_jax_finds_out_by_itself_is_left_to_it(environment):
    assert resolve(Launch(), environment) == Launch()


@pytest.mark.parametrize("environment", [SLURM, INDEXED])
def test_one_process_by_flag_overrules_the_launcher(environment):
    assert resolve(Launch(num_processes=1), environment) is None


def test_an_indexed_kubernetes_job_is_one_job_only_where_a_flag_says_so():
    with pytest.raises(InputError) as refused:
        resolve(Launch(), INDEXED)
    message = str(refused.value)
    assert "JOB_COMPLETION_INDEX=3" in message and "--num_processes=1 " in message
    assert "--num_processes=N" in message and "--coordinator_address=host:port" in message
    alone = Launch(num_processes=8)  # JAX asks the Kubernetes API for the address
    assert resolve(alone, INDEXED) == alone


ADDRESS = Launch(coordinator_address="host0:1234")


@pytest.mark.parametrize(
    ("launch", "environment", "expected"),
    [
        (Launch("host0:1234", 4, 2), CPU, (4, 2)),
        (ADDRESS, MPI5, (4, 3)),
        (ADDRESS, SLURM, (16, 5)),
        (Launch("host0:1234", 8), INDEXED, (8, 3)),
        (Launch(num_processes=8), {**INDEXED, "JAX_COORDINATOR_ADDRESS": "host0:1234"}, (8, 3)),
        (Launch(), {**MPI5, "JAX_COORDINATOR_ADDRESS": "host0:1234"}, (4, 3)),
        (Launch("host0:1234", 4, 0), MPI5, (4, 0)),
    ],
)
def test_an_address_and_numbers_from_flags_or_launcher(launch, environment, expected):
    found = resolve(launch, environment)
    assert found.coordinator_address == "host0:1234"
    assert (found.num_processes, found.process_id) == expected


@pytest.mark.parametrize(
    ("launch", "environment", "message"),
    [
        (ADDRESS, CPU, "--coordinator_address=host0:1234 .*--num_processes and --process_id"),
        (Launch("host0:1234", 4), CPU, "--coordinator_address=host0:1234 .*--process_id"),
        (Launch(num_processes=2, process_id=0), CPU, "--num_processes .*_address=host:port"),
        (Launch(), MPI5, "mpirun .*--coordinator_address=host:port"),
    ],
)
def test_what_nothing_tells_is_asked_for(launch, environment, message):
    with pytest.raises(InputError, match=message):
        resolve(launch, environment)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("host0",), "--coordinator_address=host0 .*host:port"),
        (("host0:1", 2, 2), "--process_id=2 .*--num_processes=2.* 0"),
        (("host0:1", 2, 0, 1.0), "--peer_timeout=1: .* 5 seconds"),
    ],
)
def test_impossible_flags_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        Launch(*values)


GPU = {"JAX_PLATFORMS": "cuda"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({**GPU, "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4),
        ({**GPU, "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "8"}, 8),
        ({**GPU, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({**GPU, "SLURM_STEP_TASKS_PER_NODE": "8(x4)", "SLURM_GPUS_ON_NODE": "8"}, None),
        ({**GPU, "SLURM_STEP_TASKS_PER_NODE": "1"}, None),
        ({**GPU, "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "8",
          "JAX_LOCAL_DEVICE_IDS": "3"}, None),
        ({**CPU, "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "8"}, None),
    ],
)  # fmt: skip
def test_a_process_alone_on_its_machine_has_all_of_its_gpus(environment, expected):
    assert local_devices(environment) == (None if expected is None else list(range(expected)))


def test_commands_have_the_flags():
    parser = argparse.ArgumentParser()
    add_process_arguments(parser)
    assert launch_of(parser.parse_args([])) == Launch()
    given = ["--coordinator_address=h:1", "--num_processes=2", "--process_id=1", "--peer_timeout=9"]
    assert launch_of(parser.parse_args(given)) == Launch("h:1", 2, 1, 9.0)
