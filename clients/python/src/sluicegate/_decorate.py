"""Finds the arguments of a decorated function that its dimensions depend on."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from ._types import CostLike, Dimensions, InlineLimit

#: Dimensions, or a function that returns them from arguments of the decorated function.
DimensionsOf = Union[Dimensions, Callable[..., Dimensions]]
CostOf = Union[CostLike, Callable[..., CostLike]]
LimitsOf = Union[Sequence[InlineLimit], Callable[..., Sequence[InlineLimit]]]
SkipWhen = Callable[..., bool]


class ArgumentPicker:
    """Calls a function with those arguments of the decorated function that it names."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        self._name = getattr(function, "__qualname__", repr(function))

    def check(self, value: Any, option: str) -> None:
        """Raises ``TypeError`` if a callable option names a parameter that the decorated function does not have."""
        if not callable(value):
            return
        for name, parameter in inspect.signature(value).parameters.items():
            variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if not variable and parameter.default is parameter.empty and name not in self._signature.parameters:
                known = ", ".join(self._signature.parameters) or "none"
                raise TypeError(f"{option}: {self._name} has no parameter {name!r} (known: {known})")

    def arguments(self, args: Any, kwargs: Any) -> Mapping[str, Any]:
        """Returns all arguments of a call by name."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    @staticmethod
    def value(option: Any, arguments: Mapping[str, Any]) -> Any:
        """Returns the option, or the result of the callable option."""
        if option is None or not callable(option):
            return option
        parameters = inspect.signature(option).parameters
        if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
            return option(**arguments)
        return option(**{name: arguments[name] for name in parameters if name in arguments})


class Limited:
    """The options of a decorator."""

    def __init__(
        self,
        dimensions: Optional[DimensionsOf],
        cost: Optional[CostOf],
        limits: LimitsOf,
        skip_when: Optional[SkipWhen],
    ) -> None:
        self._options = {"dimensions": dimensions, "cost": cost, "limits": limits, "skip_when": skip_when}

    def picker(self, function: Callable[..., Any]) -> ArgumentPicker:
        """Checks all options against the signature of the decorated function."""
        picker = ArgumentPicker(function)
        for name, option in self._options.items():
            picker.check(option, name)
        return picker

    def request(self, picker: ArgumentPicker, args: Any, kwargs: Any) -> Optional[Mapping[str, Any]]:
        """Returns the arguments of ``lease`` for a call, or None if it is not limited."""
        arguments = picker.arguments(args, kwargs)
        if self._options["skip_when"] is not None and picker.value(self._options["skip_when"], arguments):
            return None
        return {
            "dimensions": picker.value(self._options["dimensions"], arguments),
            "cost": picker.value(self._options["cost"], arguments),
            "limits": picker.value(self._options["limits"], arguments) or (),
        }
