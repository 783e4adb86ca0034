"""`sandyard template …`: build and list templates on this machine, without an engine running."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import click

from sandyard.engine.settings import EngineSettings
from sandyard.engine.templates import base, desktop, docker, host, interpreter
from sandyard.engine.templates.folder import TemplateFolder
from sandyard.engine.templates.package_layer import PackageLayer
from sandyard.engine.templates.progress import make_report
from sandyard.engine.templates.requirements import list_missing_requirements
from sandyard.kit.errors import InvalidInputError, SandyardError

PR_SET_PDEATHSIG = 1


@click.group()
@click.option(
    "--templates-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the templates, shared by all engines on this machine. Also SANDYARD_TEMPLATES_DIR.",
)
@click.pass_context
def template(context: click.Context, templates_dir: Path | None) -> None:
    """Build and list the root file systems that sandboxes start from."""
    context.obj = TemplateFolder(EngineSettings.load(templates_dir=templates_dir).templates_dir)


@template.command()
@click.argument("name", type=click.Choice([base.NAME, host.NAME, interpreter.NAME, desktop.NAME, docker.NAME]))
@click.option(
    "--force", is_flag=True, help="Rebuild from the current package archives. Existing sandboxes keep the old version."
)
@click.option(
    "--with",
    "extras",
    help=f"Languages to add to {interpreter.NAME}: {', '.join(interpreter.EXTRAS)}. An empty value removes them.",
)
@click.option("--if-possible", is_flag=True, help="If it cannot be built, print the reason and succeed.")
@click.option("--parent", type=int, hidden=True, help="Exit when this process ends.")
@click.pass_obj
def build(
    folder: TemplateFolder, name: str, *, force: bool, extras: str | None, if_possible: bool, parent: int | None
) -> None:
    """Build a template now, with a progress bar. Does nothing if it is up to date."""
    if parent is not None:
        _exit_with_parent(parent)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the unfinished directory is removed
    try:
        if extras is not None and name != interpreter.NAME:
            raise InvalidInputError(f"--with can only be used with {interpreter.NAME}.")
        if name == host.NAME:
            host.build(folder)
        elif name == base.NAME:
            _build_base(folder, force=force)
        elif name == desktop.NAME:
            _build_package_layer(desktop.LAYER, folder, force=force)
        elif name == docker.NAME:
            _build_package_layer(docker.LAYER, folder, force=force)
        else:
            _build_interpreter(folder, extras, force=force)
    except SandyardError as error:
        click.echo(error.message, err=True)
        if not if_possible:
            sys.exit(1)
        stand_in = {
            base.NAME: "the template host instead, with this machine's own programs",
            interpreter.NAME: "the template base instead",
            desktop.NAME: "no template desktop",
            docker.NAME: "no template docker",
        }
        click.echo(f"The engine will serve {stand_in.get(name, 'the template it has')}.", err=True)


def _build_base(folder: TemplateFolder, *, force: bool) -> None:
    if not force and folder.find(base.NAME, base.make_recipe().digest):
        return
    if missing := list_missing_requirements():
        raise base.BuildError("Cannot build template base here:\n  " + "\n  ".join(missing))
    report = make_report("template base")
    version = base.build(folder, report, force=force)
    report.finish(f"{version.description}, {version.details['size']}")


def _build_interpreter(folder: TemplateFolder, extras: str | None, *, force: bool) -> None:
    languages = None if extras is None else interpreter.parse_languages(extras)
    if languages:
        languages = tuple(sorted({*languages, *interpreter.get_extras(interpreter.find_newest(folder))}))
    if not force and languages is None and interpreter.find_newest(folder) and not interpreter.is_stale(folder):
        return
    if missing := list_missing_requirements():
        raise base.BuildError(f"Cannot build template {interpreter.NAME} here:\n  " + "\n  ".join(missing))
    report = make_report(f"template {interpreter.NAME}")
    version = interpreter.build(folder, report, languages, force=force)
    report.finish(f"{version.description}, {version.details['size']}")


def _build_package_layer(layer: PackageLayer, folder: TemplateFolder, *, force: bool) -> None:
    if not force and layer.find_newest(folder) and not layer.is_stale(folder):
        return
    if missing := list_missing_requirements():
        raise base.BuildError(f"Cannot build template {layer.name} here:\n  " + "\n  ".join(missing))
    report = make_report(f"template {layer.name}")
    version = layer.build(folder, report, force=force)
    report.finish(f"{version.description}, {version.details['size']}")


WHEN_BUILT = {
    base.NAME: "built when an engine starts",
    interpreter.NAME: "built when an engine starts",
    desktop.NAME: "built on first use",
    docker.NAME: "built on first use",
}


@template.command("list")
@click.pass_obj
def list_versions(folder: TemplateFolder) -> None:
    """List the templates built on this machine, newest first, and those that are not built."""
    for name in (base.NAME, interpreter.NAME, desktop.NAME, docker.NAME, host.NAME):
        versions = folder.list_versions(name)
        for version in versions:
            click.echo(f"{name:16} {version.version:28} {version.description}")
        if folder.is_building(name):
            click.echo(f"{name:16} {'(being built)':28} run `sandyard template build {name}` to wait for it")
        elif not versions and name in WHEN_BUILT:
            click.echo(
                f"{name:16} {'(not built)':28} {WHEN_BUILT[name]}; run `sandyard template build {name}` to build it now"
            )


def _exit_with_parent(parent: int) -> None:
    """Run with lower priority than that process, and exit when it ends."""
    os.nice(10)  # give sandboxes priority
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
