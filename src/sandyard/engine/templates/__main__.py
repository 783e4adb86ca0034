"""`python -m sandyard.engine.templates`: used by an engine to build a template in a separate process."""

from sandyard.engine.templates.commands import template

template(prog_name="sandyard template")
