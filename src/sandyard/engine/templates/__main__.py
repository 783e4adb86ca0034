"""`python -m sandyard.engine.templates`: how an engine builds a template in a process of its own."""

from sandyard.engine.templates.commands import template

template(prog_name="sandyard template")
