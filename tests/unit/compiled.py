"""Modules that are plain Python and, where there is a compiler, compiled: tested as both."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.mark import ParameterSet

import logd


def source(name: str) -> ModuleType:
    """The file itself, whatever was compiled from it."""
    path = Path(logd.__file__).parent / f"{name.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location(f"{path.stem}_source", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forms(name: str) -> list[ParameterSet]:
    installed = importlib.import_module(f"logd.{name}")
    return [pytest.param(source(name), id="source"), pytest.param(installed, id="installed")]
