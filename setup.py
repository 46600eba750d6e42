"""What pyproject.toml cannot say: with MILENA_COMPILED=1 the wheel holds the hot modules as extensions, too."""

import os
import sys

from setuptools import setup

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import build_support

setup(
    ext_modules=build_support.extensions() if build_support.is_wanted(os.environ, sys.argv) else []
)
