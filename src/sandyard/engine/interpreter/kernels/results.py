"""Richer results for E2B's clients: tables as data, figures as charts, lists and dictionaries as JSON.

Libraries are not imported before the user imports them: a kernel that plots nothing does not load matplotlib.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import warnings
from typing import Any

from IPython.core.formatters import BaseFormatter, JSONFormatter
from traitlets import ObjectName, Unicode


class DataFormatter(BaseFormatter):  # type: ignore[misc]
    """Formats a pandas DataFrame as its columns."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)


class ChartFormatter(BaseFormatter):  # type: ignore[misc]
    """Formats a matplotlib figure as its contents: series, labels, scales."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        # matplotlib's own setup removes figures from every formatter's table, so it cannot be registered there
        figures = sys.modules.get("matplotlib.figure")
        if figures is not None and isinstance(obj, figures.Figure):
            return make_chart(obj)
        return super().__call__(obj)


class PlainJsonFormatter(JSONFormatter):  # type: ignore[misc]
    """Also formats lists and dictionaries that can be represented in JSON."""

    def __call__(self, obj: Any) -> Any:
        if isinstance(obj, list | dict):
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                return to_json(obj), {"expanded": True}
        return super().__call__(obj)


def install(shell: Any) -> None:
    formatters = shell.display_formatter.formatters
    data = DataFormatter(parent=shell.display_formatter)
    data.for_type_by_name("pandas", "DataFrame", make_columns)
    data.for_type_by_name("pandas.core.frame", "DataFrame", make_columns)
    formatters["e2b/data"] = data
    formatters["e2b/chart"] = ChartFormatter(parent=shell.display_formatter)
    formatters["application/json"] = PlainJsonFormatter(parent=shell.display_formatter)


def make_columns(frame: Any) -> dict[str, list[Any]]:
    return {
        str(name): [_format_cell(value) for value in values] for name, values in frame.to_dict(orient="list").items()
    }


def make_chart(figure: Any) -> dict[str, Any] | None:
    """Return the chart, or None if the figure is empty or cannot be read."""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about other libraries' numbers do not belong in the user's stderr
        from e2b_charts import chart_figure_to_dict  # noqa: PLC0415

        description = chart_figure_to_dict(figure)
        return to_json(description) or None
    return None


def _format_cell(value: Any) -> Any:
    try:
        return to_json(value)
    except (TypeError, ValueError):
        return str(value)


def to_json(value: Any) -> Any:
    """Return the value in JSON's types. Raises TypeError if that is not possible."""
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, dict):
        return {_format_key(name): to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return _scalar_to_json(value)


def _scalar_to_json(value: Any) -> Any:
    if isinstance(value, str):  # a subclass, such as an enumeration
        return str(value.value) if hasattr(value, "value") else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "isoformat"):  # dates, times, pandas' timestamps; NaT is not equal to itself
        return value.isoformat() if value == value else None  # noqa: PLR0124
    if hasattr(value, "tolist"):  # numpy
        return to_json(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be represented in JSON")


def _format_key(name: Any) -> str:
    if isinstance(name, str):
        return str(name)
    name = to_json(name)
    if isinstance(name, bool | int | float) or name is None:
        return json.dumps(name)
    raise TypeError("only plain keys can be represented in JSON")
