"""jaxformer: the encoder-decoder Transformer of "Attention Is All You Need", in JAX.

Everything here works in a notebook: no configuration file, no mesh, no workdir. The public names
are in `__init__.pyi`. They are loaded when they are first used, so that the data pipeline and
`--help` start without JAX.
"""

import lazy_loader

from jaxformer.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
