"""Modules that are compiled where there is a compiler: tests run them in both forms."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.mark import ParameterSet

import logd


def source(name: str, *, native: bool = True) -> ModuleType:
    """The module as written in Python; without `native`, also without `logd._native`."""
    path = Path(logd.__file__).parent / f"{name.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location(f"{path.stem}_source", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setitem(sys.modules, "logd._native", None)
            patch.delattr("logd._native", raising=False)
        spec.loader.exec_module(module)
    return module


def forms(name: str) -> list[ParameterSet]:
    installed = importlib.import_module(f"logd.{name}")
    return [pytest.param(source(name), id="source"), pytest.param(installed, id="installed")]
