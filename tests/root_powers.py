"""Root passes every check of permissions; without its capabilities it meets them as others do."""

import contextlib
import ctypes
import os

VERSION = 0x20080522  # of the structures below, from linux/capability.h
OVERRIDE, SEARCH, OWNER = 1, 2, 3  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
POWERS = 1 << OVERRIDE | 1 << SEARCH | 1 << OWNER


class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class Sets(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def _call(name, sets):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(ctypes.byref(Header(VERSION, 0)), ctypes.byref(sets)):
        raise OSError(ctypes.get_errno(), name)


def drop_root_powers():
    """Give up what lets root ignore permissions, in this thread and those that it starts."""
    if os.geteuid() != 0:
        return
    sets = (Sets * 2)()
    _call("capget", sets)
    sets[0].effective &= ~POWERS
    _call("capset", sets)


@contextlib.contextmanager
def without_root_powers():
    """Inside, permissions hold for this thread even if it is root's."""
    before = (Sets * 2)()
    if os.geteuid() == 0:
        _call("capget", before)
    drop_root_powers()
    try:
        yield
    finally:
        if os.geteuid() == 0:
            _call("capset", before)
