"""Checkpoints on disk, through orbax: training saves them, everything else reads them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxformer.errors import InputError
from jaxformer.runtime.distributed import barrier
from jaxformer.storage.agreement import ask_first_process, is_first_process
from jaxformer.storage.disk_space import check_room, checkpoint_bytes, require_space
from jaxformer.storage.file_trees import make_folder, reason
from jaxformer.storage.manifest import require_verified, write_manifest
from jaxformer.storage.measurement import Ranking
from jaxformer.storage.parameters import (
    array_writer,
    check_tree,
    import_orbax,
    load_params,
    save_params,
)
from jaxformer.storage.retention import (
    MINIMUM,
    clear_unfinished,
    find_verified,
    remove_old,
    saving_mark,
)
from jaxformer.storage.steps import (
    list_steps,
    ranked_steps,
    resolve_checkpoint,
    step_metrics,
    warn,
)

__all__ = ["Checkpointer", "list_steps", "load_params", "ranked_steps",
           "resolve_checkpoint", "save_params", "step_metrics"]  # fmt: skip

MAX_FAILED_SAVES = 3  # in a row; then the run ends rather than lose more work


class Checkpointer:
    """Saves training states in the background, verified; keeps the newest ones and the best ones.

    A checkpoint holds the items `params`, `optimizer` (with the step), `ema` where there is a
    moving average, `meta`, a JSON object, and `metrics` of an evaluation. Its last file is the
    manifest; a checkpoint that lacks it or disagrees with it is refused.

    A failed save is reported at once, and the third in a row ends the run. In a job of several
    processes each calls every method; the first writes manifests and deletes old checkpoints. There
    any failed save, unless for lack of space, ends the run, because the others wait for it.

    Leaving the context manager waits for the last save, and raises if it failed.

    Args:
      directory: `checkpoints` of a workdir, created if missing.
      keep: how many of the newest stay, never fewer than two.
      ranking: finds the best.
      report: called with a line on whatever fails, is refused or is lost.

    Raises:
      InputError: the directory cannot be written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int,
        ranking: Ranking,
        report: Callable[[str], None] = warn,
    ):
        ocp = import_orbax()
        from etils import epath

        self._ocp, self._report = ocp, report
        self._keep, self._ranking = keep, ranking
        self._directory = epath.Path(directory).absolute()
        registry = ocp.DefaultCheckpointHandlerRegistry()
        metrics = ocp.JsonCheckpointHandler(filename="metrics")
        for arguments in (ocp.args.JsonSave, ocp.args.JsonRestore):
            registry.add("metrics", arguments, metrics)
        writer, reader = array_writer(), ocp.StandardCheckpointHandler()
        for name in ("params", "optimizer", "ema"):
            registry.add(name, ocp.args.PyTreeSave, writer)
            registry.add(name, ocp.args.StandardRestore, reader)
        self._orbax = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(handler_registry=registry)
        )
        self._verified: set[int] = set()  # found or written by this process
        self._fresh: int | None = None  # just verified, and about to be restored
        self._committing: threading.Thread | None = None
        self._problem = ""  # why the newest save failed; empty if it did not
        self._failed_saves = 0
        self._closed = False
        if is_first_process():
            try:
                make_folder(self._directory)
                clear_unfinished(self._directory, report)
            except OSError as error:
                raise InputError(f"{directory} cannot be written: {error}") from error

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self.close()

    @property
    def latest_step(self) -> int | None:
        """Step of the newest finished checkpoint, intact or not; None if there is none."""
        steps = list_steps(self._directory)
        return steps[-1] if steps else None

    def newest_verified(self) -> int | None:
        """Step of the newest checkpoint whose files are all intact.

        Newer, damaged ones are reported with their damaged files and set aside, so that their
        steps can be saved again.

        Returns:
          None if there are no checkpoints at all.

        Raises:
          InputError: there are some, but none is intact.
        """
        self._join()
        step = ask_first_process(lambda: find_verified(self._directory, self._report))
        if step is not None:
            self._verified.add(step)
        self._fresh = step
        return step

    def check_space(self, abstract) -> None:
        """Report before the first step if the disk lacks room for the checkpoints of a state.

        Raises:
          InputError: there is no room even for one.
        """
        kept = max(self._keep, MINIMUM) + 2  # the best one, and the one being written
        new = kept - len(list_steps(self._directory))
        check_room(self._directory, checkpoint_bytes(abstract), new=new, report=self._report)

    def save(
        self, step: int, state, meta: dict[str, Any], metrics: dict[str, float] | None
    ) -> None:
        """Start a save; returns as soon as the arrays are copied off the devices.

        Waits for the previous save first, and counts it if it failed.

        Args:
          step: updates done.
          state: the `TrainState`.
          meta: JSON values, restored as they are.
          metrics: from the evaluation at this step; None: there was none, and the checkpoint is
            never the best.

        Raises:
          InputError: saving failed for the third time in a row, or once in a job of processes.
        """
        self._join()
        folder = self._directory / str(step)
        if folder.exists():
            raise RuntimeError(f"there is already a checkpoint in {folder}")
        args = self._ocp.args
        items = {
            "params": args.PyTreeSave(state.params),
            "optimizer": args.PyTreeSave({"step": state.step, "opt_state": state.opt_state}),
            "meta": args.JsonSave(json.loads(json.dumps(meta))),  # a copy: written later
        }
        if state.ema_params is not None:
            items["ema"] = args.PyTreeSave(state.ema_params)
        if metrics is not None:
            items["metrics"] = args.JsonSave(metrics)
        needed = checkpoint_bytes(state)
        try:
            ask_first_process(lambda: require_space(self._directory, needed))
        except InputError as error:
            self._fail(step, error)
            self._count_failure(MAX_FAILED_SAVES)
            return
        try:
            if is_first_process():
                saving_mark(self._directory, step).write_text("")
            self._orbax.save(folder, args=args.Composite(**items))
        except Exception as error:  # orbax may raise anything
            self._fail(step, error)
            self._count_failure(self._most_failures)
            return
        self._committing = threading.Thread(target=self._commit, args=(step,), name="checkpoint")
        self._committing.start()

    def _commit(self, step: int) -> None:
        """In the background: write the manifest once orbax is done, then delete old ones."""
        folder = self._directory / str(step)
        try:
            self._orbax.wait_until_finished()
            if is_first_process():
                write_manifest(folder)
                saving_mark(self._directory, step).unlink()
        except Exception as error:
            self._fail(step, error)
            return
        self._problem = ""
        self._verified.add(step)
        if not is_first_process():
            return
        try:
            remove_old(
                self._directory,
                keep=self._keep,
                ranking=self._ranking,
                verified=self._verified,
                report=self._report,
            )
        except (OSError, InputError) as error:
            self._report(f"old checkpoints in {self._directory} could not be deleted: {error}")

    def _fail(self, step: int, error: Exception) -> None:
        """Report a failed save, and delete its partial files: the next save needs the room."""
        own = isinstance(error, InputError)
        why = str(error) if own else f"{type(error).__name__}: {reason(error)}"
        self._problem = f"the checkpoint of step {step:,} was NOT saved: {why}"
        newest = max(self._verified, default=None)
        last = "there is no good one" if newest is None else f"the last good one is of {newest:,}"
        self._report(f"{self._problem}; {last}; the next save tries again")
        if is_first_process():
            try:
                clear_unfinished(self._directory, self._report)
            except OSError as left:
                self._report(f"its partial files could not be deleted: {left}")

    def _join(self) -> None:
        """Wait for the save that is being written, and count if it failed."""
        if self._committing is None:
            return
        self._committing.join()
        self._committing = None
        if self._problem:
            self._count_failure(self._most_failures)
        else:
            self._failed_saves = 0

    @property
    def _most_failures(self) -> int:
        # In a job the other processes wait for the one that failed.
        return MAX_FAILED_SAVES if jax.process_count() == 1 else 1

    def _count_failure(self, most: int) -> None:
        self._failed_saves += 1
        if self._failed_saves >= most:
            raise InputError(f"{self._problem}; failures in a row: {self._failed_saves}")

    def restore(self, step: int, abstract) -> tuple[Any, dict[str, Any]]:
        """The state and meta of a step, each array placed as `abstract` says.

        Raises:
          InputError: the checkpoint is damaged, or shapes differ from the model's.
        """
        folder = self._directory / str(step)
        if step != self._fresh:
            ask_first_process(lambda: require_verified(folder))
        self._fresh = None
        check_tree(folder / "params", abstract.params)
        args = self._ocp.args
        items = {
            "params": args.StandardRestore(abstract.params),
            "optimizer": args.StandardRestore(
                {"step": abstract.step, "opt_state": abstract.opt_state}
            ),
            "meta": args.JsonRestore(),
        }
        if abstract.ema_params is not None:
            items["ema"] = args.StandardRestore(abstract.ema_params)
        found = self._orbax.restore(folder, args=args.Composite(**items))
        state = abstract._replace(
            step=found["optimizer"]["step"],
            params=found["params"],
            opt_state=found["optimizer"]["opt_state"],
            ema_params=found["ema"] if abstract.ema_params is not None else None,
        )
        return state, found["meta"]

    def wait(self) -> None:
        """Return when everything is on disk and verified.

        Raises:
          InputError: the last save failed.
        """
        self._join()
        barrier()  # the first process has written the manifest; all may read it now
        if self._problem:
            raise InputError(self._problem)

    def close(self) -> None:
        """Wait for the save that is being written, and release resources."""
        if self._committing is not None:
            self._committing.join()
        if not self._closed:
            self._orbax.close()
        self._closed = True
