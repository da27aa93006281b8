"""What the tests of checkpoints share."""

import pytest
from saved_states import ranked_by

from jaxformer.storage.checkpoint import Checkpointer


@pytest.fixture
def open_checkpointer(tmp_path):
    """Makes checkpointers; `said` is what they reported."""
    opened, said = [], []

    def make(*, directory=tmp_path, **settings):
        settings = {"keep": 9, "ranking": ranked_by("bleu"), "report": said.append} | settings
        opened.append(Checkpointer(directory, **settings))
        return opened[-1]

    make.said = said
    yield make
    for checkpointer in opened:
        checkpointer.close()
