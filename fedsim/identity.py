"""What a function, a module or another callable computes, as text: the part of a run's identity that is code."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Seen = frozenset[int]
PLAIN = str | bytes | int | float | complex | None


def hash_tensor(tensor: Tensor) -> str:
    """Shape, dtype and a hash of the values."""
    data = tensor.detach().cpu().contiguous()
    values = data.reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(data.shape)} {data.dtype} {hashlib.sha256(values.data).hexdigest()}"


def describe_code(thing: Any, seen: Seen = frozenset()) -> str:
    """Byte code, constants, closures and settings of a callable, and of what it uses of the user's own.

    Of what comes with torch it is name and settings, so that a run may be resumed with another version; of other
    libraries' functions that are only called, the name.
    """
    if id(thing) in seen:
        return ""
    text = partial(_text, seen=seen | {id(thing)})
    if isinstance(thing, partial):
        return f"{text(thing.func)} {text(thing.args)} {text(thing.keywords)}"
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    texts = [kind.__qualname__, "wrapped" if hasattr(thing, "__wrapped__") else ""]
    if not isinstance(thing, type):
        settings = sorted(getattr(thing, "__dict__", {}).items())
        texts += [f"{name}={text(value)}" for name, value in settings if name[0] != "_"]
    for source in kind.__mro__ if isinstance(kind, type) else [kind]:
        if not str(source.__module__).startswith(("torch.", "fedsim.")):
            texts += _members(source, text) if isinstance(source, type) else [_function(source, text)]
    if isinstance(thing, nn.Module):
        texts += map(text, thing.children())
    return " ".join(texts)


def _members(source: type, text: Callable[[Any], str]) -> Iterator[str]:
    """The methods, properties and attributes of a class."""
    for name, member in vars(source).items():
        parts = (member.fget, member.fset) if isinstance(member, property) else (getattr(member, "__func__", member),)
        for part in parts:
            if callable(part) and hasattr(inspect.unwrap(part), "__code__"):
                yield _function(part, text)
            elif not name.startswith("_"):
                yield f"{name}={text(part)}"


def _function(function: Any, text: Callable[[Any], str]) -> str:
    """A function's byte code and defaults, and the variables around it that it names."""
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return ""
    around = inspect.getclosurevars(function)
    used = sorted({**around.globals, **around.nonlocals}.items())
    given = [function.__code__, function.__defaults__, function.__kwdefaults__]
    return " ".join([*map(text, given), *(f"{name}={text(value)}" for name, value in used)])


def _text(value: Any, seen: Seen) -> str:
    """A value that code uses, as text; empty for what has none that is the same in every process."""
    text = partial(_text, seen=seen)
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {text(value.co_consts)}"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, list | tuple):
        return str([*map(text, value)])
    if isinstance(value, set | frozenset):
        return str(sorted(map(text, value)))
    if isinstance(value, dict):
        return str(sorted((text(key), text(entry)) for key, entry in value.items()))
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.from_numpy(np.array(value))
    if isinstance(value, Tensor):
        return hash_tensor(value)
    if isinstance(value, nn.Module):
        return " ".join([describe_code(value, seen), *map(hash_tensor, value.state_dict().values())])
    if callable(value) and not isinstance(value, ModuleType):
        return describe_code(value, seen) if _is_users(value) else getattr(value, "__qualname__", "")
    return ""


def _is_users(thing: Any) -> bool:
    """Whether code is the user's own rather than a library's."""
    name = str(getattr(thing, "__module__", None) or type(thing).__module__)
    top = name.partition(".")[0]
    path = str(getattr(sys.modules.get(name), "__file__", ""))
    ours = top in ("fedsim", "fatclip_ops", "torch", "numpy") or top in sys.stdlib_module_names - {"__main__"}
    return not ours and "site-packages" not in path and "dist-packages" not in path
