"""Eight simulated CPU devices, and JAX as strict as it can be."""

import fcntl
import functools
import os
from pathlib import Path

# Some hundred steps with collectives deadlock when fewer threads than devices wait for each other.
os.environ.setdefault("PJRT_NPROC", "64")
# Nearly all the time of the tests is compilation, and their arrays are tiny.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from jax.experimental.compilation_cache import compilation_cache  # noqa: E402
from numpy_reference import draw_parameters  # noqa: E402
from training_run import SmallRun, small_config, use_devices, write_corpus  # noqa: E402

from jaxformer.models.transformer import Transformer  # noqa: E402
from jaxformer.training.loop import train  # noqa: E402

# Files that take minutes: begun last, one worker would run them while the other waits.
LONGEST = (
    "fault/test_two_processes.py",
    "fault/test_kill.py",
    "test_tour.py",
    "test_train_script.py",
    "test_bad_input.py",
)

LEFT_OUT = ("fault", "browser", "accelerator", "real_size")  # kinds that run by themselves

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_default_matmul_precision", "highest")


def pytest_collection_modifyitems(items):
    """Put the longest files first, in the order of `LONGEST`."""
    folder = Path(__file__).parent
    places = {folder / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


def pytest_terminal_summary(terminalreporter, config):
    """Say which kinds of tests the expression of -m left out."""
    left_out = [name for name in LEFT_OUT if f"not {name}" in config.option.markexpr]
    if left_out:
        run = ", ".join(f"pytest -m {name}" for name in left_out)
        terminalreporter.write_line(f"left out: tests marked {' and '.join(left_out)} ({run})")


@pytest.fixture(scope="session")
def real_data():
    """Folder of real text that is not part of the project; the project must work without it."""
    folder = os.environ.get("JAXFORMER_TEST_DATA")
    if not folder:
        pytest.skip("JAXFORMER_TEST_DATA names no folder of real text")
    return Path(folder)


@pytest.fixture(scope="session")
def parameters_of():
    """Random parameters of a model config; none of them is 0 or 1, as fresh biases would be."""

    @functools.cache
    def draw(config, seed=0):
        model, token = Transformer(config), jnp.zeros((1, 1), jnp.int32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]
        return draw_parameters(jax.tree.map(jnp.shape, shapes), seed)

    return draw


@pytest.fixture(scope="session")
def stack_layers():
    """Turn `layer_0 .. layer_{L-1}` of a model's parameters into the `layers` of scan_layers."""

    def stack(params):
        stacked = dict(params)
        for side in ("encoder", "decoder"):
            layers = [name for name in params[side] if name.startswith("layer_")]
            rest = {name: params[side][name] for name in params[side] if name not in layers}
            every = [params[side][f"layer_{index}"] for index in range(len(layers))]
            stacked[side] = rest | {"layers": jax.tree.map(lambda *x: np.stack(x), *every)}
        return stacked

    return stack


@pytest.fixture(scope="session")
def compiled_programs(tmp_path_factory):
    """Compiled programs of this session on disk, for its runs and its child processes."""
    folder = str(shared_folder(tmp_path_factory) / "compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", folder)
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        compilation_cache.reset_cache()
        yield folder
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, compiled_programs):
    """A run of 120 steps over number words, trained once a session; not to be changed."""
    folder = shared_folder(tmp_path_factory) / "small_run"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        config = small_config(folder / "corpus", folder / "cache")
        if not (folder / "complete").exists():
            write_corpus(folder / "corpus")
            assert train(config, folder / "run").exit_status == 0
            (folder / "complete").touch()
    return SmallRun(config, folder / "run", folder / "corpus")


@pytest.fixture
def one_device(monkeypatch):
    """Train on one of the simulated devices: programs that compile in half the time."""
    use_devices(monkeypatch, 1)


def shared_folder(tmp_path_factory):
    """A folder of this session, the same for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder
