"""The parts of benchmarks/train.py; importing any of them makes the checkout importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
